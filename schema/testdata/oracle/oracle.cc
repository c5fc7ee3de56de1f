// The C++ FlatBuffers library on the frames of gradbus: an oracle for schema.Verify, and a writer
// in another language.
//
//   oracle verify   reads frames from standard input, each after its length (4 bytes,
//                   little-endian); writes 1 for each that the library's verifier accepts, else 0
//   oracle write    writes a dense and a sparse frame to standard output, in the same form
//
// oracle_test.go compiles it against what `flatc --cpp` makes of gradbus.fbs.

// Values are aligned to 64; the library's builder asserts at most 32 unless it is told first.
#define FLATBUFFERS_MAX_ALIGNMENT 64

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "gradbus_generated.h"

namespace {

// CRC-32C bit by bit, reflected.
uint32_t Crc(const uint8_t* bytes, size_t n) {
  uint32_t crc = 0xffffffffu;
  for (size_t i = 0; i < n; i++) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; bit++) {
      crc = (crc & 1) ? (crc >> 1) ^ 0x82f63b78u : crc >> 1;
    }
  }
  return ~crc;
}

// Of the frame with sequence and crc of the head taken as zero, and of the sequence by itself.
uint32_t Checksum(std::vector<uint8_t> frame, size_t head) {
  uint32_t sequence = Crc(&frame[head + 8], 8);
  std::memset(&frame[head + 8], 0, 12);
  return Crc(frame.data(), frame.size()) ^ sequence ^ Crc(&frame[head + 8], 8);
}

bool ReadFrame(std::vector<uint8_t>* frame) {
  uint32_t n = 0;
  if (std::fread(&n, 4, 1, stdin) != 1) return false;
  frame->resize(n);
  return n == 0 || std::fread(frame->data(), n, 1, stdin) == 1;
}

void WriteFrame(const std::vector<uint8_t>& frame) {
  uint32_t n = static_cast<uint32_t>(frame.size());
  std::fwrite(&n, 4, 1, stdout);
  std::fwrite(frame.data(), n, 1, stdout);
}

// Seal takes the finished buffer and writes its checksum.
std::vector<uint8_t> Seal(const flatbuffers::FlatBufferBuilder& b) {
  std::vector<uint8_t> frame(b.GetBufferPointer(), b.GetBufferPointer() + b.GetSize());
  const auto* head = reinterpret_cast<const uint8_t*>(wire::GetFrame(frame.data())->head());
  size_t at = static_cast<size_t>(head - frame.data());
  uint32_t crc = Checksum(frame, at);
  std::memcpy(&frame[at + 16], &crc, 4);
  return frame;
}

flatbuffers::Offset<flatbuffers::Vector<uint8_t>> Values(flatbuffers::FlatBufferBuilder* b,
                                                         const std::vector<float>& values) {
  b->ForceVectorAlignment(values.size() * 4, 1, 64);
  return b->CreateVector(reinterpret_cast<const uint8_t*>(values.data()), values.size() * 4);
}

void Write() {
  flatbuffers::FlatBufferBuilder dense;
  auto dense_values = Values(&dense, {1.0f, -2.0f, 0.5f});
  wire::Head dense_head(0x53554247, 1, 1, 9, 0, 1, 0x0123456789abcdef, 7, 65536, 32.0, 2, 1, 2, 0,
                        0, 2, 4, 1);
  wire::FrameBuilder dense_frame(dense);
  dense_frame.add_head(&dense_head);
  dense_frame.add_values(dense_values);
  wire::FinishFrameBuffer(dense, dense_frame.Finish());
  WriteFrame(Seal(dense));

  flatbuffers::FlatBufferBuilder sparse;
  auto values = Values(&sparse, {1, 2, 3, 4, 5});
  auto keys = sparse.CreateVector(std::vector<uint64_t>{3, uint64_t{1} << 40, 5});
  std::vector<wire::Section> list = {wire::Section(0, 2, 2), wire::Section(1, 1, 1)};
  auto sections = sparse.CreateVectorOfStructs(list);
  wire::Head head(0x53554247, 1, 2, 11, 0, 1, 0x0123456789abcdef, 7, 0, 64.0, 3, 0, 1, 0, 0, 4, 4,
                  1);
  wire::FrameBuilder frame(sparse);
  frame.add_head(&head);
  frame.add_values(values);
  frame.add_keys(keys);
  frame.add_sections(sections);
  wire::FinishFrameBuffer(sparse, frame.Finish());
  WriteFrame(Seal(sparse));
}

void Verify() {
  std::vector<uint8_t> frame;
  while (ReadFrame(&frame)) {
    flatbuffers::Verifier verifier(frame.data(), frame.size());
    std::fputc(wire::VerifyFrameBuffer(verifier) ? '1' : '0', stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string mode = argc == 2 ? argv[1] : "";
  if (mode == "verify") {
    Verify();
  } else if (mode == "write") {
    Write();
  } else {
    std::fprintf(stderr, "usage: oracle verify|write\n");
    return 2;
  }
  return 0;
}
