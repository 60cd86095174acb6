// A Go program whose methods are called through wrappers that end in jumps, by goroutines that wait, grow their stacks and
// panic in them. It speaks the protocol of protocol.h.
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

type Doer interface{ Do(n int) int }

type Base struct{ done int64 }

type Derived struct {
	Base
	name string
}

type Further struct {
	first int64
	Derived
}

var derived, further, base, returned, waited int64

//go:noinline
func grow(n int) int {
	var own [64]int
	own[n%64] = n
	if n == 0 {
		return own[0]
	}
	return grow(n-1) + own[n%64]
}

//go:noinline
func (b *Base) Do(n int) int {
	atomic.AddInt64(&base, 1)
	if n%5 == 0 {
		panic(n)
	}
	if n%7 == 0 {
		before := time.Now()
		time.Sleep(time.Millisecond)
		atomic.AddInt64(&waited, int64(time.Since(before)))
	}
	runtime.Gosched()
	atomic.AddInt64(&returned, 1)
	atomic.AddInt64(&b.done, 1)
	return grow(n%50)*0 + n*2
}

//go:noinline
func call(d Doer, n int) (found int) {
	defer func() {
		if recover() != nil {
			found = -1
		}
	}()
	return d.Do(n)
}

//go:noinline
func worker(rounds int, done *sync.WaitGroup) {
	defer done.Done()
	doers := []Doer{&Derived{}, &Further{}, &Base{}}
	for i := 1; i <= rounds; i++ {
		switch i % 3 {
		case 0:
			atomic.AddInt64(&derived, 1)
		case 1:
			atomic.AddInt64(&further, 1)
		}
		if found := call(doers[i%3], i); found != i*2 && i%5 != 0 {
			fmt.Println("BAD result")
			os.Exit(1)
		}
	}
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	fmt.Printf("ready %d\n", os.Getpid())
	for in.Scan() && strings.HasPrefix(in.Text(), "go ") {
		n, _ := strconv.Atoi(in.Text()[3:])
		for ; n > 0; n-- {
			var done sync.WaitGroup
			done.Add(20)
			for i := 0; i < 20; i++ {
				go worker(105, &done)
			}
			done.Wait()
		}
		fmt.Printf("calls derived %d\ncalls further %d\ncalls base %d\n", derived, further, base)
		fmt.Printf("returns base %d\ncalls waited %d\ndone\n", returned, waited)
	}
	fmt.Println("ok")
}
