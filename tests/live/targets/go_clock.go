// A Go program whose first thread forbids itself the time stamp counter, between calls of Work.
package main

import (
	"fmt"
	"runtime"
	"syscall"
)

const (
	calls    = 1000
	setTSC   = 26 // PR_SET_TSC
	allowIt  = 1  // PR_TSC_ENABLE
	forbidIt = 2  // PR_TSC_SIGSEGV
)

//go:noinline
func Work(number int) int { return number ^ 1 }

func main() {
	runtime.LockOSThread()
	sum := 0
	for i := 0; i < calls; i++ {
		sum += Work(i)
	}
	_, _, failed := syscall.RawSyscall(syscall.SYS_PRCTL, setTSC, forbidIt, 0)
	for i := 0; i < calls; i++ {
		sum += Work(i)
	}
	// Go's own runtime reads the counter when it schedules, and would crash: printing may schedule.
	syscall.RawSyscall(syscall.SYS_PRCTL, setTSC, allowIt, 0)
	if failed == 0 && sum != 0 {
		fmt.Println("done")
	}
}
