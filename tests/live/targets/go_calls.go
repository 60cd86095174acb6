// A Go program whose goroutines block, migrate between threads, grow their stacks, panic, recover and exit in the middle
// of calls. It keeps its own record of calls that return, and speaks the protocol of protocol.h. The arguments are how
// many goroutines there are in a round and how many rounds of its own each makes.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	block = iota
	grow
	spin
	risky
	safe
	quit
	inner
	outer
	names
)

var calls, returns [names]int64
var blockedFor, sink int64

func begin(which int)     { atomic.AddInt64(&calls[which], 1) }
func end(which, many int) { atomic.AddInt64(&returns[which], int64(many)) }

//go:noinline
func Block(ch chan int, wait time.Duration) int {
	if wait > 0 {
		time.Sleep(wait)
	}
	runtime.Gosched()
	return <-ch
}

//go:noinline
func Grow(depth int, above *[40]int) int {
	var own [40]int
	own[depth%40] = above[depth%40] + 1
	if depth == 0 {
		return own[0]
	}
	return Grow(depth-1, &own) + own[depth%40]
}

//go:noinline
func Spin(n int) int {
	found := 0
	var last [32]int // so large that its stack is looked at first
	for i := 0; i < n; i++ {
		found = found*31 + i + last[(i+7)&31]
		last[i&31] = found
	}
	return found
}

//go:noinline
func Risky(n int) int {
	if n%3 == 0 {
		panic(n)
	}
	return Grow(n%8, new([40]int))
}

//go:noinline
func Safe(n int) (found int) {
	defer func() {
		if recover() != nil {
			found = -1
		}
	}()
	found = Risky(n)
	return found
}

//go:noinline
func Quit(n int) {
	if n >= 0 {
		runtime.Goexit()
	}
}

//go:noinline
func Inner(n int) { Quit(n) }

//go:noinline
func Outer(n int) int { return Spin(n) + 1 }

func fail(reason string) { fmt.Println("BAD " + reason); os.Exit(1) }

func worker(number, rounds int, done *sync.WaitGroup) {
	defer done.Done()
	ch := make(chan int, 1)
	for i := 0; i < rounds; i++ {
		begin(block)
		ch <- i
		wait := time.Duration(0)
		if i == 0 {
			wait = 200 * time.Microsecond
		}
		before := time.Now()
		if Block(ch, wait) != i {
			fail("Block")
		}
		atomic.AddInt64(&blockedFor, int64(time.Since(before)))
		end(block, 1)
		depth := 10 << uint(i%6)
		atomic.AddInt64(&calls[grow], int64(depth+1))
		Grow(depth, new([40]int))
		end(grow, depth+1)
		begin(spin)
		atomic.AddInt64(&sink, int64(Spin(1000)))
		end(spin, 1)
		begin(safe)
		begin(risky)
		if i%3 != 0 {
			atomic.AddInt64(&calls[grow], int64(i%8+1))
		}
		found := Safe(i)
		if (found == -1) != (i%3 == 0) {
			fail("Safe")
		}
		end(safe, 1)
		if i%3 != 0 {
			end(risky, 1)
			end(grow, i%8+1)
		}
		begin(outer)
		begin(spin)
		Outer(i)
		end(outer, 1)
		end(spin, 1)
	}
	begin(inner)
	begin(quit)
	Inner(number)
}

func main() {
	goroutines, rounds := 50, 20
	if len(os.Args) > 2 {
		goroutines, _ = strconv.Atoi(os.Args[1])
		rounds, _ = strconv.Atoi(os.Args[2])
	}
	in := bufio.NewScanner(os.Stdin)
	fmt.Printf("ready %d\n", os.Getpid())
	for in.Scan() && strings.HasPrefix(in.Text(), "go ") {
		n, _ := strconv.Atoi(in.Text()[3:])
		for ; n > 0; n-- {
			var done sync.WaitGroup
			done.Add(goroutines)
			for i := 0; i < goroutines; i++ {
				go worker(i, rounds, &done)
			}
			done.Wait()
		}
		for which, name := range []string{"Block", "Grow", "Spin", "Risky", "Safe", "Quit", "Inner", "Outer"} {
			fmt.Printf("calls main.%s %d\nreturns main.%s %d\n", name, calls[which], name, returns[which])
		}
		fmt.Printf("calls blocked %d\ndone\n", blockedFor)
	}
	fmt.Println("ok")
}
