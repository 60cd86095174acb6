// A Go program that passes interfaces with values of all kinds. It speaks the protocol of protocol.h.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"reflect"
	"strings"
	"syscall"
)

type failure struct{ code int }

func (f *failure) Error() string { return "failure" }

type coordinates struct{ x, y int }

func (c coordinates) Error() string { return "coordinates" }

type code int

func (c code) Error() string { return "code" }

type words []string

func (w words) Error() string { return "words" }

type pair[K comparable, V any] struct {
	key   K
	value V
}

func (p pair[K, V]) Error() string { return "pair" }

type holder struct {
	Number int
	Err    error
	Any    any
	In     io.Reader
}

//go:noinline
func Fail(err error, n int) (int, error) { return n, err }

//go:noinline
func Any(value any, h *holder) any { return h.Any }

//go:noinline
func Read(r io.Reader, h holder) io.Reader { return h.In }

var failures = []error{
	nil, &failure{1}, coordinates{1, 2}, code(3), words{"a"}, pair[string, int]{"a", 1}, &pair[int8, []byte]{},
	errors.New("text"), fmt.Errorf("around %w", io.EOF), &net.OpError{Op: "dial"}, syscall.ENOENT,
	&fs.PathError{Op: "open", Path: "/missing", Err: syscall.ENOENT},
}

var values = []any{
	nil, 1, "text", 2.5, true, []int{1}, map[string]*failure{}, struct{ X int }{1}, make(chan int), &[3]byte{}, code(1),
	func(int) string { return "" }, new(any), new(error), coordinates{}, pair[bool, func()]{}, complex64(1), [2]uint16{},
	reflect.New(reflect.StructOf([]reflect.StructField{{Name: "Made", Type: reflect.TypeOf(0)}})).Elem().Interface(),
}

func round() {
	for i, err := range failures {
		Fail(err, i)
	}
	for i, value := range values {
		Any(value, &holder{Number: i, Err: failures[i%len(failures)], Any: value})
	}
	Read(strings.NewReader("text"), holder{Err: code(2)})
	Read(os.Stdin, holder{In: os.Stderr})
	Read(nil, holder{Any: uint8(1)})
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	fmt.Printf("ready %d\n", os.Getpid())
	for in.Scan() {
		if !strings.HasPrefix(in.Text(), "go ") {
			break
		}
		round()
		fmt.Println("done")
	}
	fmt.Println("ok")
}
