// A Go program whose functions panic, by a fault, by a division and of their own, and recover. It speaks the protocol of
// protocol.h.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

type Pair struct{ a, b int }

var calls, recovered int

//go:noinline
func Deref(p *Pair) int { x := 3; x = x*p.b + p.a; return x }

//go:noinline
func Divide(a, b int) int { return a / b }

//go:noinline
func Safe(which int, p *Pair) (n int) {
	calls++
	defer func() {
		if recover() != nil {
			recovered++
			n = -1
		}
	}()
	switch which % 4 {
	case 0:
		return Deref(p)
	case 1:
		return Divide(which, 0)
	case 2:
		panic("own")
	}
	return Divide(which, 2) + Deref(&Pair{1, 2})
}

func bad(reason string) { fmt.Println("BAD " + reason); os.Exit(1) }

func round() {
	before := recovered
	for i := 0; i < 400; i++ {
		want := -1
		if i%4 == 3 {
			want = i/2 + 7
		}
		if Safe(i, nil) != want {
			bad("Safe")
		}
	}
	if recovered-before != 300 {
		bad("recovered")
	}
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	fmt.Printf("ready %d\n", os.Getpid())
	for in.Scan() && strings.HasPrefix(in.Text(), "go ") {
		n, _ := strconv.Atoi(in.Text()[3:])
		for ; n > 0; n-- {
			round()
		}
		fmt.Printf("calls main.Safe %d\nreturns main.Safe %d\ndone\n", calls, calls)
	}
	fmt.Println("ok")
}
