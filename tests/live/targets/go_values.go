// A Go program that passes values of every kind and says what they were. It speaks the protocol of protocol.h.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

type Inner struct {
	Port int32
	Host string
}

type Base struct {
	ID   int64
	Name string
}

type Request struct {
	Base
	Method string
	Where  *Inner
	Near   Inner
	Tags   []string
	Seen   map[string]int
	Err    error
	Any    interface{}
	Small  [3]int8
	Ratio  float32
	On     bool
}

type Small struct {
	A int8
	B uint16
	C float64
	D string
}

type Server struct{ name string }

type failure struct{ code int }

func (f *failure) Error() string { return strconv.Itoa(f.code) }

//go:noinline
func Numbers(a int8, b float64, c uint16, d float32, e uint8, f int64, g bool, h int32, i uint32, j int, k rune) int {
	return int(a) + int(c) + int(f) + j + int(k) + int(b+float64(d)) + int(e) + int(h) + int(i)
}

//go:noinline
func Many(a, b, c, d, e, f, g, h, i, j string, last int16) (string, int) {
	return j + a, int(last) + len(a+b+c+d+e+f+g+h+i)
}

//go:noinline
func Text(path string, n int) string { return path + strconv.Itoa(n) }

//go:noinline
func Bytes(content []byte, numbers []int32, names []string) int {
	total := len(content) + cap(numbers)
	for _, n := range numbers {
		total += int(n)
	}
	return total + len(names)
}

//go:noinline
func ByValue(s Small, pair [2]int64, one [1]int64, after int) Small {
	s.A += int8(pair[1] + one[0] + int64(after))
	s.D += "!"
	return s
}

//go:noinline
func (s *Server) Handle(ctx context.Context, r *Request) (n int, err error) {
	if r.On {
		return len(s.name), &failure{len(r.Method)}
	}
	return len(r.Method), nil
}

//go:noinline
func (s Server) Name(prefix string) string { return prefix + s.name }

//go:noinline
func Faces(err error, any interface{}, m map[string]int, ch chan int, f func() int) (error, bool) {
	return err, len(m) > 0
}

//go:noinline
func Divide(a, b float64) (quotient float64, ok bool) { return a / b, b != 0 }

//go:noinline
func Generic[T any](value T, n int) (T, int) { return value, n + 1 }

//go:noinline
func Complex(c complex128, d complex64) complex128 { return c + complex128(d) }

func inlined(path string) int { return len(path) + 1 }

//go:noinline
func CallsInlined(path string) int { return inlined(path) * 2 }

type key struct{}

func round() {
	Numbers(-1, 2.5, 300, 0.25, 200, -5_000_000_000, true, -7, 4_000_000_000, -9, 'x')
	Many("a", "bb", "ccc", "dddd", "e", "f", "g", "h", "iiii", "jjjjj", -12)
	Text("/index.html", 42)
	Text("", 0)
	Text(strings.Repeat("long ", 40), 1)
	Text("Grüße\x00end", -1)
	Bytes([]byte("content"), make([]int32, 3, 8)[:2], []string{"one", "two", "three"})
	ByValue(Small{-3, 500, 1.5, "small"}, [2]int64{7, 8}, [1]int64{9}, 10)
	r := &Request{Base{77, "base"}, "GET", &Inner{443, "far away"}, Inner{80, "near"}, []string{"x", "yy"},
		map[string]int{"a": 1, "b": 2, "c": 3}, errors.New("own"), 12, [3]int8{1, -2, 3}, 0.75, false}
	server := &Server{"main server"}
	ctx := context.WithValue(context.Background(), key{}, 1)
	server.Handle(ctx, r)
	r.On, r.Where = true, nil
	server.Handle(ctx, r)
	server.Name("the ")
	ch := make(chan int, 4)
	ch <- 1
	ch <- 2
	Faces(&failure{5}, "text", r.Seen, ch, func() int { return len(r.Tags) })
	Faces(nil, nil, nil, nil, nil)
	Divide(1, 4)
	Generic("generic", 3)
	Generic(int64(5), 4)
	Complex(complex(1, 2), complex(0.5, -0.5))
	CallsInlined("inline")
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	fmt.Printf("ready %d\n", os.Getpid())
	for in.Scan() {
		line := in.Text()
		if !strings.HasPrefix(line, "go ") {
			break
		}
		n, _ := strconv.Atoi(line[3:])
		for ; n > 0; n-- {
			round()
		}
		fmt.Println("done")
	}
	fmt.Println("ok")
}
