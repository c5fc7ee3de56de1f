#include "textflag.h"

// FOLD moves the polynomial in register Z on by the distance of KEYS and adds the block at offset OFF(SI). T is scratch.
#define FOLD(KEYS, Z, T, OFF) \
	VPCLMULQDQ $0x00, KEYS, Z, T; \
	VPCLMULQDQ $0x11, KEYS, Z, Z; \
	VPTERNLOGQ $0x96, OFF(SI), T, Z

// JOIN moves register Z on by one block and adds it to the register NEXT. T is scratch.
#define JOIN(KEYS, Z, T, NEXT) \
	VPCLMULQDQ $0x00, KEYS, Z, T; \
	VPCLMULQDQ $0x11, KEYS, Z, Z; \
	VPTERNLOGQ $0x96, Z, T, NEXT

// func fold(state *[blockBytes]byte, data *byte, blocks int, keys *[4]uint64)
TEXT ·fold(SB), NOSPLIT, $0-32
	MOVQ state+0(FP), DI
	MOVQ data+8(FP), SI
	MOVQ blocks+16(FP), CX
	MOVQ keys+24(FP), DX
	VBROADCASTI32X4 (DX), Z8    // one stride on
	VBROADCASTI32X4 16(DX), Z9  // one block on

	VMOVDQU64 (DI), Z0
	VPXORQ    (SI), Z0, Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	ADDQ      $256, SI
	SUBQ      $4, CX

stride:
	CMPQ CX, $4
	JLT  join
	FOLD(Z8, Z0, Z4, 0)
	FOLD(Z8, Z1, Z5, 64)
	FOLD(Z8, Z2, Z6, 128)
	FOLD(Z8, Z3, Z7, 192)
	ADDQ $256, SI
	SUBQ $4, CX
	JMP  stride

join:
	JOIN(Z9, Z0, Z4, Z1)
	JOIN(Z9, Z1, Z5, Z2)
	JOIN(Z9, Z2, Z6, Z3)

block:
	TESTQ CX, CX
	JEQ   done
	FOLD(Z9, Z3, Z7, 0)
	ADDQ  $64, SI
	DECQ  CX
	JMP   block

done:
	VMOVDQU64 Z3, (DI)
	VZEROUPPER
	RET
