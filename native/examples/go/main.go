// A small HTTP server over libqwen3: token ids in, token ids out as they come. No text, no templates, no OpenAI.
//
//	serve [-addr 127.0.0.1:8080] MODEL_DIR
//
// POST /generate takes {"prompt": [9707, 11], "max_tokens": 16, "temperature": 0.7, "seed": 1} and answers a JSON object
// a line: {"token": 1879} for each token, then {"token": -1, "finish": "length", "tokens": 16}. A client that goes away
// cancels its request. GET /stats says how many requests run and how many were cancelled.
// SIGINT and SIGTERM cancel what runs and end the server.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

const maxBody = 16 << 20

// Statuses of qwen3.h that are not the server's failure.
var httpStatus = map[int]int{1: http.StatusBadRequest, 6: http.StatusBadRequest, 7: http.StatusTooManyRequests}

type server struct {
	engine   *Engine
	handlers sync.WaitGroup // those that may call the engine
}

func refuse(w http.ResponseWriter, status int, sentence string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]string{"error": sentence})
}

func (s *server) generate(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		refuse(w, http.StatusMethodNotAllowed, "use POST")
		return
	}
	// The body is read to its end: only then does net/http watch for a client that goes away.
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	var asked struct {
		Prompt []int32 `json:"prompt"`
		Sampling
	}
	asked.MaxTokens, asked.Temperature = 16, 1
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&asked); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	stream, err := s.engine.Submit(asked.Prompt, asked.Sampling)
	var failure *Error
	if errors.As(err, &failure) {
		status, known := httpStatus[failure.Status]
		if !known {
			status = http.StatusServiceUnavailable
		}
		refuse(w, status, failure.Sentence)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines := json.NewEncoder(w)
	for finished := false; !finished; {
		events := stream.Next(r.Context())
		for _, event := range events {
			lines.Encode(event) // fails when the client is gone, and then r.Context() is done
			finished = event.Finish != ""
		}
		if events == nil { // the client is gone, or the server is being stopped
			lines.Encode(Event{Token: -1, Finish: "cancelled"})
			finished = true
		}
		w.(http.Flusher).Flush()
	}
}

func (s *server) stats(w http.ResponseWriter, _ *http.Request) {
	running, cancelled := s.engine.Stats()
	json.NewEncoder(w).Encode(map[string]any{"running": running, "cancelled": cancelled})
}

func (s *server) counted(handler http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.handlers.Add(1)
		defer s.handlers.Done()
		handler(w, r)
	}
}

func run(addr, modelDir string) error {
	running, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	engine, err := Open(modelDir)
	if err != nil {
		return err
	}
	defer engine.Close()
	s := &server{engine: engine}
	defer s.handlers.Wait() // before the engine is closed
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/generate", s.counted(s.generate))
	mux.HandleFunc("/stats", s.counted(s.stats))
	web := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	web.BaseContext = func(net.Listener) context.Context { return running } // a signal cancels every request
	served := make(chan error, 1)
	go func() { served <- web.Serve(listener) }()
	fmt.Printf("listening on http://%s\n", listener.Addr())
	select {
	case err := <-served: // it does not come back by itself
		return err
	case <-running.Done():
	}
	patience, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if web.Shutdown(patience) != nil {
		return web.Close() // somebody does not read; writing to them fails now
	}
	return nil
}

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "where to listen; port 0 takes a free one")
	flag.Usage = func() { fmt.Fprintln(os.Stderr, "usage: serve [-addr HOST:PORT] MODEL_DIR") }
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*addr, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "serve:", err)
		os.Exit(1)
	}
}
