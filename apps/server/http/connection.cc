// Reading: from bytes to requests.
#include "http/connection.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "api/errors.h"
#include "config.h"
#include "http/channel.h"
#include "http/exchange.h"
#include "http/gate.h"
#include "http/head.h"
#include "http/parser.h"
#include "http/request_id.h"
#include "message.h"

namespace quire::server {
namespace {

// Bytes that one connection reads before others have their turn.
constexpr std::size_t kTurnBytes = std::size_t{256} << 10;
// Bytes of a chunk's line, or of trailers, that may wait for their end.
constexpr std::size_t kChunkLineBytes = std::size_t{16} << 10;
// Interval at which a connection whose buffer is full is asked whether the client has gone.
constexpr std::chrono::milliseconds kGoneInterval{50};

HeadLimits head_limits(const TransportLimits& limits) {
  return {.header_bytes = static_cast<std::size_t>(limits.header_bytes),
          .header_fields = static_cast<std::size_t>(limits.header_fields),
          .target_bytes = static_cast<std::size_t>(limits.target_bytes)};
}

}  // namespace

Connection::Connection(ConnectionHost& host, ListenerFacts listener, Handler handler,
                       std::unique_ptr<Channel> channel, std::string remote)
    : host_(host),
      listener_(listener),
      handler_(std::move(handler)),
      channel_(std::move(channel)),
      remote_(std::move(remote)),
      config_(host.config) {
  ++host_.stats.idle;
}

Connection::~Connection() = default;

void Connection::start() {
  enter(State::kIdle);
  watch();
}

void Connection::enter(State state) {
  const bool idle = state == State::kIdle;
  if (idle != counted_idle_) {
    host_.stats.idle += idle ? 1 : -1;
    host_.stats.active += idle ? -1 : 1;
    counted_idle_ = idle;
  }
  state_ = state;
  since_ = host_.loop.now();
  arm();
}

// Sees to it that what the client does is noticed.
void Connection::watch() {
  if (watching_ || ended_ || state_ == State::kClosed) {
    return;
  }
  const bool waits = state_ == State::kAnswering || state_ == State::kFlushing;
  watching_ = true;
  auto self = shared_from_this();
  if (waits && in_.size() >= static_cast<std::size_t>(limits().read_ahead_bytes)) {
    host_.loop.after(kGoneInterval, [self] {
      self->watching_ = false;
      if (self->state_ != State::kClosed && self->channel_->client_is_gone()) {
        self->on_end();
      }
      self->watch();
    });
    return;
  }
  channel_->when_readable([self] {
    self->watching_ = false;
    self->on_readable();
  });
}

void Connection::on_readable() {
  std::size_t turn = 0;
  while (state_ != State::kClosed && turn < kTurnBytes) {
    const bool waits = state_ == State::kAnswering || state_ == State::kFlushing;
    const auto ahead = static_cast<std::size_t>(limits().read_ahead_bytes);
    if (waits && in_.size() >= ahead) {
      break;
    }
    const std::size_t room = waits ? ahead - in_.size() : host_.scratch.size();
    std::size_t size = 0;
    const Channel::Read read =
        channel_->read({host_.scratch.data(), std::min(room, host_.scratch.size())}, size);
    if (read == Channel::Read::kNothing) {
      break;
    }
    if (read != Channel::Read::kBytes) {
      broken_ = broken_ || read == Channel::Read::kBroken;
      on_end();
      break;
    }
    turn += size;
    if (state_ != State::kLingering) {
      in_.append(host_.scratch.data(), size);
      process();
    }
  }
  watch();
}

// Hears that the client has closed its side, or all of it.
void Connection::on_end() {
  ended_ = true;
  const bool unread = state_ == State::kHead || state_ == State::kBody;
  if (unread && !broken_) {
    refuse({.message = "the request ends before its end"});
  } else if (state_ == State::kAnswering) {
    shut(Gone::kClient);
  } else if (state_ != State::kFlushing || broken_) {
    close();
  }
}

void Connection::process() {
  if (processing_) {
    return;
  }
  processing_ = true;
  while (process_some()) {
  }
  processing_ = false;
}

// Takes one step with the bytes that are there. Returns false when more are needed, or a request is
// being answered.
bool Connection::process_some() {
  if (state_ == State::kIdle) {
    if (in_.starts_with("\r\n")) {  // some clients end a body with an empty line
      in_.erase(0, 2);
    }
    if (in_.empty() || in_ == "\r") {
      in_.shrink_to_fit();
      return false;
    }
    config_ = host_.config;
    active_ = std::make_unique<Active>();
    active_->scanner = HeadScanner(head_limits(limits()));
    active_->begin = host_.loop.now();
    active_->record.remote = remote_;
    enter(State::kHead);
  }
  if (state_ == State::kHead) {
    return read_head();
  }
  return state_ == State::kBody && read_body();
}

bool Connection::read_head() {
  HeadScanner::Outcome outcome = active_->scanner.scan(in_);
  active_->record.bytes_in =
      static_cast<std::int64_t>(outcome.size > 0 ? outcome.size : in_.size());
  if (outcome.refusal) {
    refuse(*outcome.refusal);
    return false;
  }
  if (outcome.size == 0) {
    return false;
  }
  active_->parser = std::make_unique<RequestParser>(limits().max_body_bytes);
  RequestParser& parser = *active_->parser;
  std::optional<Refusal> refusal = parser.take_head(std::string_view(in_).substr(0, outcome.size));
  in_.erase(0, outcome.size);
  active_->http11 = parser.http11();
  name_request();
  std::string authority;
  if (!refusal) {
    refusal = split_target(parser.target(), parser.request(), authority);
    active_->record.path = parser.request().path;
  }
  if (!refusal) {
    refusal = read_framing(parser.request(), active_->http11, active_->framing);
  }
  if (refusal) {
    refuse(*refusal);
    return false;
  }
  if (auto answer = check_gate(*config_, listener_, active_->http11, authority, parser.request())) {
    answer_from_gate(std::move(*answer));
    return false;
  }
  return open_body();
}

// Names the request, so that its refusal has its id, too.
void Connection::name_request() {
  Request& request = active_->parser->request();
  const std::string_view given = request.header("x-request-id");
  request.id = is_request_id(given) ? std::string(given) : new_request_id();
  request.remote = remote_;
  active_->is_head = request.method == "HEAD";
  active_->close = !active_->http11 || has_word(request, "connection", "close");
  active_->record.request_id = request.id;
  active_->record.method = request.method;
  active_->record.user_agent = request.header("user-agent");
}

// Checks what the head says of the body, and begins to read it.
bool Connection::open_body() {
  const Request& request = active_->parser->request();
  const std::string_view coding = stripped(request.header("content-encoding"));
  const auto limit = static_cast<std::uint64_t>(limits().max_body_bytes);
  if (!coding.empty() && !same_word(coding, "identity")) {
    answer_from_gate(
        gate_refusal(415, "unsupported_media_type", "content-encoding: only identity is read"));
    return false;
  }
  if (active_->framing.content_length > limit) {
    answer_from_gate(gate_refusal(413, "body_too_large",
                                  "the body has " +
                                      std::to_string(active_->framing.content_length) +
                                      " bytes, the limit is " + std::to_string(limit)));
    return false;
  }
  if (!active_->framing.has_body()) {
    dispatch();
    return false;
  }
  if (active_->http11 && in_.empty() && has_word(request, "expect", "100-continue")) {
    put("HTTP/1.1 100 Continue\r\n\r\n");
  }
  active_->body_begin = active_->window_begin = host_.loop.now();
  enter(State::kBody);
  return true;
}

bool Connection::read_body() {
  std::size_t taken = 0;
  const std::optional<Refusal> refusal = active_->parser->take_body(in_, taken);
  in_.erase(0, taken);
  active_->body_bytes += static_cast<std::int64_t>(taken);
  active_->record.bytes_in += static_cast<std::int64_t>(taken);
  if (refusal) {
    refuse(*refusal);
    return false;
  }
  if (active_->parser->done()) {
    dispatch();
    return false;
  }
  if (in_.size() > kChunkLineBytes) {
    refuse({.message = "transfer-encoding: the line of a chunk is too long"});
  }
  return false;
}

void Connection::dispatch() {
  active_->request = std::make_shared<Request>(std::move(active_->parser->request()));
  active_->parser.reset();
  enter(State::kAnswering);
  auto exchange = std::make_shared<Exchange>(host_.loop, shared_from_this());
  active_->exchange = exchange;
  try {
    handler_(active_->request, std::move(exchange));
  } catch (const std::exception& fault) {  // the answer was dropped, so it fails
    host_.fault(fault.what());
  }
}

// Answers bytes that are no request, and closes.
void Connection::refuse(const Refusal& refusal) {
  in_ = {};
  active_->close = true;
  if (active_->record.request_id.empty()) {
    active_->record.request_id = new_request_id();
  }
  enter(State::kAnswering);
  send(error_response(refusal.status, refusal.code, refusal.message), {.error_code = refusal.code});
}

// Answers a request whose body, if it has one, is not read.
void Connection::answer_from_gate(GateAnswer answer) {
  active_->request = std::make_shared<Request>(std::move(active_->parser->request()));
  active_->parser.reset();
  if (active_->framing.has_body()) {
    active_->close = true;
    in_ = {};
  }
  enter(State::kAnswering);
  send(std::move(answer.response), {.error_code = std::move(answer.code)});
}

}  // namespace quire::server
