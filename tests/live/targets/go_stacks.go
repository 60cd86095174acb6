// A Go program in which no thread is on a stack of its own: the first one and all others that run goroutines stay in
// system calls of theirs. Their stacks lie below the data of their threads, among memory whose content is known. It
// speaks the protocol of protocol.h.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

const threads = 24

type block [256]uint64

var (
	blocks []*block
	ends   [threads][2]int
	works  = make(chan int)
	calls  int
)

func init() { runtime.LockOSThread() }

//go:noinline
func Work(n int) int { return n*3 + 1 }

//go:noinline
func Wait(fd int) byte {
	var got [1]byte
	syscall.Read(fd, got[:])
	return got[0]
}

func locked(number int, started, ended chan bool) {
	runtime.LockOSThread()
	<-started
	if Wait(ends[number][0]) != byte(number) {
		bad("Wait")
	}
	ended <- true
}

func bad(reason string) { fmt.Println("BAD " + reason); os.Exit(1) }

func fill(count int) {
	for i := 0; i < count; i++ {
		b := new(block)
		for j := range b {
			b[j] = uint64(len(blocks))<<32 | uint64(j)
		}
		blocks = append(blocks, b)
	}
}

func check() {
	for i, b := range blocks {
		for j := range b {
			if b[j] != uint64(i)<<32|uint64(j) {
				bad("memory")
			}
		}
	}
}

func main() {
	megabytes := 4
	if len(os.Args) > 1 {
		megabytes, _ = strconv.Atoi(os.Args[1])
	}
	started, ended := make(chan bool), make(chan bool)
	fill(256)
	for i := range ends {
		syscall.Pipe(ends[i][:])
		go locked(i, started, ended)
	}
	for range ends {
		started <- true
	}
	fill(megabytes << 9)
	go func() {
		for n := range works {
			for i := 0; i < n*1000; i++ {
				if Work(i) != i*3+1 {
					bad("Work")
				}
				calls++
			}
			works <- 0
		}
	}()
	in := bufio.NewScanner(os.Stdin)
	fmt.Printf("ready %d\n", os.Getpid())
	for in.Scan() && strings.HasPrefix(in.Text(), "go ") {
		n, _ := strconv.Atoi(in.Text()[3:])
		works <- n
		<-works
		check()
		fmt.Printf("calls main.Work %d\nreturns main.Work %d\ndone\n", calls, calls)
	}
	for i := range ends {
		syscall.Write(ends[i][1], []byte{byte(i)})
		<-ended
	}
	check()
	fmt.Println("ok")
}
