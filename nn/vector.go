package nn

// Dot is the sum of x[i]*y[i], float32, of the first len(x) values of y, which may be longer. Four partial sums, of i
// modulo 4, are added up in sequence and then as (0+1) + (2+3); products are rounded before they are added, so the bits
// are the same on every processor.
//
//	Dot([]float32{1, 2, 3}, []float32{4, 5, 6}) == 32
func Dot(x, y []float32) float32 {
	y = y[:len(x)]
	var a, b, c, d float32
	i := 0
	for ; i+4 <= len(x); i += 4 {
		a += float32(x[i] * y[i])
		b += float32(x[i+1] * y[i+1])
		c += float32(x[i+2] * y[i+2])
		d += float32(x[i+3] * y[i+3])
	}
	for k := 0; i < len(x); i, k = i+1, k+1 {
		p := float32(x[i] * y[i])
		switch k {
		case 0:
			a += p
		case 1:
			b += p
		default:
			c += p
		}
	}
	return (a + b) + (c + d)
}

// Axpy adds a*x to y, float32, in place: y[i] += a*x[i], the product rounded first. y has at least len(x) values, and x
// may be y.
//
//	y := []float32{1, 1}; Axpy(2, []float32{3, 4}, y) // y is {7, 9}
func Axpy(a float32, x, y []float32) {
	y = y[:len(x)]
	for i, v := range x {
		y[i] += float32(a * v)
	}
}
