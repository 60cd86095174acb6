// A Go program with very many goroutines that wait in the middle of a call all at once, and whose stacks grow after that.
// It speaks the protocol of protocol.h. The argument is how many goroutines there are in a round.
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
)

const deepest = 12

//go:noinline
func Grow(n int, above *[40]int) int {
	var own [40]int
	own[n] = above[n] + 1
	if n == 0 {
		return own[0]
	}
	return Grow(n-1, &own) + own[n]
}

//go:noinline
func Wait(start chan struct{}, n int, waiting *int64) int {
	atomic.AddInt64(waiting, 1)
	<-start
	return Grow(n%deepest, new([40]int))
}

func main() {
	many, rounds := 1000, 0
	if len(os.Args) > 1 {
		many, _ = strconv.Atoi(os.Args[1])
	}
	depths := 0
	for i := 0; i < many; i++ {
		depths += i%deepest + 1
	}
	in := bufio.NewScanner(os.Stdin)
	fmt.Printf("ready %d\n", os.Getpid())
	for in.Scan() && strings.HasPrefix(in.Text(), "go ") {
		n, _ := strconv.Atoi(in.Text()[3:])
		for ; n > 0; n-- {
			var waiting int64
			var done sync.WaitGroup
			start := make(chan struct{})
			done.Add(many)
			for i := 0; i < many; i++ {
				go func(i int) {
					Wait(start, i, &waiting)
					done.Done()
				}(i)
			}
			for atomic.LoadInt64(&waiting) < int64(many) {
				runtime.Gosched()
			}
			close(start)
			done.Wait()
			rounds++
		}
		fmt.Printf("calls main.Wait %d\ncalls main.Grow %d\ndone\n", rounds*many, rounds*depths)
	}
	fmt.Println("ok")
}
