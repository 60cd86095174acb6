// A Go program with goroutines, growing stacks and preemption, that checks its own results. It speaks the protocol of
// protocol.h.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

var calls int64

//go:noinline
func Work(x int) int { atomic.AddInt64(&calls, 1); return x*3 + 1 }

//go:noinline
func Deep(n int) int {
	var pad [64]int
	pad[n%64] = n
	if n == 0 {
		return pad[0]
	}
	return Deep(n-1) + pad[n%64] - n + 1
}

func bad(reason string) { fmt.Println("BAD " + reason); os.Exit(1) }

func round() {
	var group sync.WaitGroup
	for g := 0; g < 8; g++ {
		group.Add(1)
		go func(g int) {
			defer group.Done()
			sum := 0
			for i := 0; i < 200; i++ {
				sum += Work(i + g)
			}
			if sum != 3*(199*100+200*g)+200 {
				bad("Work")
			}
			if Deep(500) != 500 {
				bad("Deep")
			}
			if strings.Repeat("ab", 50)[99] != 'b' {
				bad("Repeat")
			}
		}(g)
	}
	group.Wait()
}

func main() {
	lines := make(chan string)
	go func() {
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			lines <- in.Text()
		}
		close(lines)
	}()
	fmt.Printf("ready %d\n", os.Getpid())
	for line := range lines {
		if strings.HasPrefix(line, "go ") {
			n, _ := strconv.Atoi(line[3:])
			for ; n > 0; n-- {
				round()
			}
		} else if line == "free" {
			fmt.Println("running")
			for waiting := true; waiting; {
				select {
				case <-lines:
					waiting = false
				default:
					round()
				}
			}
		} else {
			break
		}
		n := atomic.LoadInt64(&calls)
		fmt.Printf("calls main.Work %d\nreturns main.Work %d\ndone\n", n, n)
	}
	fmt.Println("ok")
}
