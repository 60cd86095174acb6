// A Go program that uses database/sql from many goroutines, with a driver of its own, and counts what it asks by query. It
// speaks the protocol of protocol.h.
package main

import (
	"bufio"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

type fake struct{}
type conn struct{}
type stmt struct{ query string }
type rows struct{ left int64 }

func (fake) Open(name string) (driver.Conn, error)       { return &conn{}, nil }
func (c *conn) Prepare(query string) (driver.Stmt, error) { return &stmt{query}, nil }
func (c *conn) Close() error                              { return nil }
func (c *conn) Begin() (driver.Tx, error)                 { return c, nil }
func (c *conn) Commit() error                             { return nil }
func (c *conn) Rollback() error                           { return nil }
func (s *stmt) Close() error                              { return nil }
func (s *stmt) NumInput() int                             { return -1 }
func (s *stmt) Exec(args []driver.Value) (driver.Result, error) {
	if strings.HasPrefix(s.query, "bad") {
		return nil, errors.New("bad query")
	}
	time.Sleep(500 * time.Microsecond)
	return driver.RowsAffected(1), nil
}
func (s *stmt) Query(args []driver.Value) (driver.Rows, error) { return &rows{args[0].(int64)}, nil }
func (r *rows) Columns() []string                              { return []string{"n"} }
func (r *rows) Close() error                                   { return nil }
func (r *rows) Next(into []driver.Value) error {
	if r.left == 0 {
		return io.EOF
	}
	into[0] = r.left
	r.left--
	return nil
}

var queries = []string{"insert into a", "update b", "bad", "delete from c where d"}

var (
	lock  sync.Mutex
	count = map[string]int{}
)

func note(what string) { lock.Lock(); count[what]++; lock.Unlock() }

func worker(db *sql.DB, number int, done *sync.WaitGroup) {
	defer done.Done()
	ctx := context.Background()
	for i := 0; i < 40; i++ {
		query := queries[(i+number)%len(queries)]
		note(query)
		if _, err := db.ExecContext(ctx, query, i); (err != nil) != (query == "bad") {
			fmt.Println("BAD error")
			os.Exit(1)
		}
		note("select")
		found, err := db.QueryContext(ctx, "select n from t", int64(i%3))
		if err != nil {
			fmt.Println("BAD", err)
			os.Exit(1)
		}
		for found.Next() {
			note("row")
		}
		found.Close()
	}
}

func main() {
	sql.Register("fake", fake{})
	db, _ := sql.Open("fake", "")
	db.SetMaxOpenConns(4) // so that some wait
	in := bufio.NewScanner(os.Stdin)
	fmt.Printf("ready %d\n", os.Getpid())
	for in.Scan() && strings.HasPrefix(in.Text(), "go ") {
		n, _ := strconv.Atoi(in.Text()[3:])
		for ; n > 0; n-- {
			var done sync.WaitGroup
			done.Add(16)
			for i := 0; i < 16; i++ {
				go worker(db, i, &done)
			}
			done.Wait()
		}
		for what, number := range count {
			fmt.Printf("calls %s %d\n", strings.ReplaceAll(what, " ", "_"), number)
		}
		fmt.Println("done")
	}
	fmt.Println("ok")
}
