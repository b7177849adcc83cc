// Connection: reads the requests of one client in order, and writes their answers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config.h"
#include "http/channel.h"
#include "http/gate.h"
#include "http/head.h"
#include "http/parser.h"
#include "loop.h"
#include "message.h"
#include "service.h"

namespace quire::server {

class Exchange;
class Connection;

// State that the connections of a server share. It outlives them.
struct ConnectionHost {
  Loop& loop;
  // Configuration of the requests that begin from now on.
  std::shared_ptr<const Config> config;
  // Called when a request has ended.
  std::function<void(const AccessRecord&)> done;
  // Called with the text of an exception that a handler has thrown.
  std::function<void(const char* what)> fault;
  // Called when the connection has closed; its last call.
  std::function<void(Connection&)> closed;
  // True: each connection is closed after its answer.
  bool closing = false;
  TransportStats stats = {};
  // Buffer into which all connections read, one after the other.
  std::vector<char> scratch = std::vector<char>(std::size_t{64} << 10);
  std::string date = {};
  std::int64_t date_second = 0;
};

// One connection. The server's list and answers under way own it by shared pointers.
// Threads: the loop's thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(ConnectionHost& host, ListenerFacts listener, Handler handler,
             std::unique_ptr<Channel> channel, std::string remote);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Begins to read.
  void start();
  // Closes it at once. Tells a request that is being answered that the connection is gone.
  void shut(Gone why);
  // Closes it unless a request is under way.
  void close_if_idle();
  // Returns true while a request is being answered, or its last bytes are being sent.
  [[nodiscard]] bool is_busy() const {
    return state_ == State::kAnswering || state_ == State::kFlushing;
  }

  // Sends the answer under way. Exchange calls this and the next functions, and never after the
  // answer has ended.
  void send(Response response, AnswerFacts facts);
  void begin_stream(StreamHead head);
  void write_stream(std::string_view bytes);
  void end_stream(AnswerFacts facts);
  void fail(Response refusal, std::string_view event, AnswerFacts facts);
  [[nodiscard]] bool writable() const;

 private:
  // State of a connection.
  // * kIdle: between requests.
  // * kHead, kBody: a request is being read.
  // * kAnswering: its answer is under way.
  // * kFlushing: the answer has ended, its last bytes have not gone out.
  // * kLingering: nothing is written any more; incoming bytes are dropped.
  enum class State : std::uint8_t {
    kIdle,
    kHead,
    kBody,
    kAnswering,
    kFlushing,
    kLingering,
    kClosed
  };
  using TimePoint = Loop::Clock::time_point;

  // Enters a state. connection.cc has this and the next functions, which read.
  void enter(State state);
  void watch();
  void on_readable();
  void on_end();
  void process();
  bool process_some();
  bool read_head();
  bool open_body();
  bool read_body();
  void dispatch();
  void refuse(const Refusal& refusal);
  void answer_from_gate(GateAnswer answer);
  void name_request();

  // Writes the head of an answer. answering.cc has this and the next functions, which write and
  // watch deadlines.
  void put_head(Response& response, std::optional<std::size_t> length, bool chunked);
  void put_stream_head();
  void put(std::string_view bytes);
  void schedule_flush();
  void flush();
  void after_flush();
  void finish(AnswerFacts facts);
  void log(int status);
  void linger();
  void close();
  [[nodiscard]] std::optional<TimePoint> due() const;
  void arm();
  void on_timer();
  void check_reading(TimePoint now);
  void check_writing(TimePoint now);
  [[nodiscard]] std::size_t unsent() const { return out_.size() - out_sent_; }
  [[nodiscard]] const TransportLimits& limits() const { return config_->limits; }

  ConnectionHost& host_;
  const ListenerFacts listener_;
  const Handler handler_;
  std::unique_ptr<Channel> channel_;
  const std::string remote_;
  std::shared_ptr<const Config> config_;  // configuration for the request under way

  State state_ = State::kIdle;
  bool counted_idle_ = true;
  bool watching_ = false;    // a call of when_readable is due
  bool processing_ = false;  // process() runs
  bool ended_ = false;       // the client will send nothing more
  bool broken_ = false;      // writing has failed
  bool flush_posted_ = false;
  bool waits_writable_ = false;
  std::string in_;   // bytes that were read and not yet taken
  std::string out_;  // bytes to be sent
  std::size_t out_sent_ = 0;

  // The request under way.
  struct Active {
    HeadScanner scanner;
    std::unique_ptr<RequestParser> parser;
    std::shared_ptr<Request> request;
    std::weak_ptr<Exchange> exchange;
    AccessRecord record;
    Framing framing;
    TimePoint begin;
    TimePoint body_begin;
    TimePoint window_begin;
    std::int64_t window_bytes = 0;  // bytes of the body when the window began
    std::int64_t body_bytes = 0;
    bool http11 = true;
    bool close = false;    // the connection is closed behind the answer
    bool is_head = false;  // HEAD: the body is left out
    bool begun = false;    // a stream was begun
    bool head_sent = false;
    bool chunked = false;
    bool over_limit = false;  // writable() was false
    StreamHead stream;
    TimePoint stream_begin;
    TimePoint last_write;
    int status = 0;
  };
  std::unique_ptr<Active> active_;

  TimePoint since_;          // time at which the state was entered
  TimePoint last_progress_;  // time at which the client took a byte, or one began to wait
  Loop::Timer timer_ = 0;
  TimePoint timer_due_;
};

}  // namespace quire::server
