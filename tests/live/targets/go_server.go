// A server of net/http with a log of its own: how long each request took, by path, and how long what is inside of it did,
// by path with "/inside" behind. It listens on a port that it chooses
// and says, and speaks the protocol of protocol.h; a round asks nothing of itself.
package main

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"sort"
	"strings"
	"sync"
	"time"
)

type Log struct {
	lock  sync.Mutex
	times map[string][]time.Duration
}

func (l *Log) add(path string, begin time.Time) {
	took := time.Since(begin)
	l.lock.Lock()
	l.times[path] = append(l.times[path], took)
	l.lock.Unlock()
}

type Server struct{ log *Log }

// ServeHTTP answers, fast or slowly.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer s.log.add(r.URL.Path+"/inside", time.Now())
	switch r.URL.Path {
	case "/slow":
		time.Sleep(20 * time.Millisecond)
	case "/thread":
		made := make(chan bool)
		go func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			time.Sleep(time.Millisecond)
			made <- true
		}()
		<-made
	case "/panics":
		panic(http.ErrAbortHandler)
	}
	fmt.Fprintln(w, r.URL.Path)
}

type Logged struct {
	inner http.Handler
	log   *Log
}

func (l *Logged) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer l.log.add(r.URL.Path, time.Now())
	l.inner.ServeHTTP(w, r)
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println("BAD", err)
		os.Exit(1)
	}
	log := &Log{times: map[string][]time.Duration{}}
	go http.Serve(listener, &Logged{inner: &Server{log}, log: log})
	in := bufio.NewScanner(os.Stdin)
	fmt.Printf("ready %d\n", os.Getpid())
	for in.Scan() && strings.HasPrefix(in.Text(), "go ") {
		fmt.Printf("calls port %d\n", listener.Addr().(*net.TCPAddr).Port)
		log.lock.Lock()
		for path, times := range log.times {
			sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
			fmt.Printf("calls %s %d\nreturns %s %d\ntails %s %d\n", path, len(times), path, times[len(times)/2],
				path, times[len(times)*99/100])
		}
		log.lock.Unlock()
		fmt.Println("done")
	}
	fmt.Println("ok")
}
