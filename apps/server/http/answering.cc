// Writing: from answers to bytes, and the times after which a connection is given up.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <ratio>
#include <string>
#include <string_view>
#include <utility>

#include "http/channel.h"
#include "http/connection.h"
#include "http/exchange.h"
#include "http/gate.h"
#include "http/render_head.h"
#include "message.h"
#include "service.h"

namespace quire::server {
namespace {

// A larger buffer is given back when it is empty.
constexpr std::size_t kKeptBytes = std::size_t{16} << 10;
constexpr std::int64_t kBytesPerSecond = 1024;
constexpr int kClientGone = 499;

// Returns the date of a response: "Sun, 06 Nov 1994 08:49:37 GMT".
const std::string& date_of(ConnectionHost& host) {
  const std::time_t now = std::time(nullptr);
  if (now != host.date_second) {
    host.date_second = now;
    std::tm parts = {};
    gmtime_r(&now, &parts);
    std::array<char, 64> text = {};
    // The locale of numbers and names is that of C.
    const std::size_t size =
        std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
    host.date.assign(text.data(), size);
  }
  return host.date;
}

}  // namespace

void Connection::put_head(Response& response, std::optional<std::size_t> length, bool chunked) {
  Active& active = *active_;
  active.close = active.close || response.close || host_.closing;
  active.status = response.status;
  if (active.request != nullptr) {
    add_cors(*config_, *active.request, response.headers);
  }
  put(render_head(response, {.request_id = active.record.request_id,
                             .date = date_of(host_),
                             .content_length = length,
                             .chunked = chunked,
                             .close = active.close}));
  active.head_sent = true;
}

void Connection::send(Response response, AnswerFacts facts) {
  if (state_ != State::kAnswering) {
    return;
  }
  if (active_->head_sent) {  // a stream cannot become a response; its client sees that it is cut
    active_->close = true;
    finish(std::move(facts));
    return;
  }
  const bool bare = has_no_body(response.status);
  put_head(response, bare ? std::nullopt : std::optional(response.body.size()), false);
  if (!bare && !active_->is_head) {
    put(response.body);
  }
  finish(std::move(facts));
}

void Connection::begin_stream(StreamHead head) {
  if (state_ != State::kAnswering || active_->begun) {
    return;
  }
  active_->begun = true;
  active_->stream = std::move(head);
  active_->stream_begin = host_.loop.now();
  arm();
}

void Connection::put_stream_head() {
  if (active_->head_sent) {
    return;
  }
  active_->chunked = active_->http11 && !active_->is_head;
  active_->close = active_->close || !active_->http11;
  Response& head = active_->stream.head;
  if (head.content_type.starts_with("text/event-stream")) {
    std::erase_if(head.headers, [](const auto& each) { return each.name == "x-accel-buffering"; });
    head.headers.push_back({"x-accel-buffering", "no"});  // proxies hand each event on at once
  }
  put_head(head, std::nullopt, active_->http11);
  active_->last_write = host_.loop.now();
}

void Connection::write_stream(std::string_view bytes) {
  if (state_ != State::kAnswering || bytes.empty()) {
    return;
  }
  put_stream_head();
  active_->last_write = host_.loop.now();
  if (active_->chunked) {
    std::string chunk;
    chunk.reserve(bytes.size() + 24);
    append_chunk(chunk, bytes);
    put(chunk);
  } else if (!active_->is_head) {
    put(bytes);
  }
  active_->over_limit = active_->over_limit || !writable();
  arm();
}

void Connection::end_stream(AnswerFacts facts) {
  if (state_ != State::kAnswering) {
    return;
  }
  put_stream_head();
  if (active_->chunked) {
    put("0\r\n\r\n");
  }
  finish(std::move(facts));
}

void Connection::fail(Response refusal, std::string_view event, AnswerFacts facts) {
  if (state_ != State::kAnswering) {
    return;
  }
  if (!active_->head_sent) {
    send(std::move(refusal), std::move(facts));
    return;
  }
  write_stream(event);
  active_->close = true;
  end_stream(std::move(facts));
}

bool Connection::writable() const {
  return unsent() <= static_cast<std::size_t>(limits().unsent_bytes);
}

void Connection::put(std::string_view bytes) {
  if (unsent() == 0) {
    last_progress_ = host_.loop.now();
  }
  out_ += bytes;
  schedule_flush();
}

// Sends at once all that was written in one turn of the loop.
void Connection::schedule_flush() {
  if (flush_posted_ || waits_writable_) {
    return;
  }
  flush_posted_ = true;
  host_.loop.post([self = shared_from_this()] {
    self->flush_posted_ = false;
    self->flush();
  });
}

void Connection::flush() {
  if (state_ == State::kClosed || state_ == State::kLingering) {
    return;
  }
  while (unsent() > 0) {
    std::size_t size = 0;
    if (!channel_->write(std::string_view(out_).substr(out_sent_), size)) {
      broken_ = true;
      on_end();
      return;
    }
    if (size == 0) {
      waits_writable_ = true;
      channel_->when_writable([self = shared_from_this()] {
        self->waits_writable_ = false;
        self->flush();
      });
      break;
    }
    out_sent_ += size;
    last_progress_ = host_.loop.now();
    if (active_ != nullptr) {
      active_->record.bytes_out += static_cast<std::int64_t>(size);
    }
  }
  if (unsent() == 0) {
    out_.clear();
    if (out_.capacity() > kKeptBytes) {
      out_.shrink_to_fit();
    }
    out_sent_ = 0;
  } else if (out_sent_ > kKeptBytes) {
    out_.erase(0, out_sent_);
    out_sent_ = 0;
  }
  after_flush();
}

void Connection::after_flush() {
  if (active_ != nullptr && active_->over_limit && writable()) {
    active_->over_limit = false;
    if (const auto exchange = active_->exchange.lock()) {
      exchange->became_writable();
    }
  }
  if (state_ != State::kFlushing || unsent() > 0) {
    arm();
    return;
  }
  log(active_->status);
  const bool close_now = active_->close || host_.closing || ended_;
  active_.reset();
  if (close_now) {
    linger();
    return;
  }
  out_ = {};
  enter(State::kIdle);
  process();
  watch();
}

// Ends the answer. Unsent bytes still go out.
void Connection::finish(AnswerFacts facts) {
  active_->record.facts = std::move(facts);
  enter(State::kFlushing);
  schedule_flush();
}

void Connection::log(int status) {
  AccessRecord& record = active_->record;
  record.status = status;
  if (active_->request != nullptr && active_->request->caller != nullptr) {
    record.tenant = active_->request->caller->tenant;
  }
  record.total_ms =
      std::chrono::duration<double, std::milli>(host_.loop.now() - active_->begin).count();
  host_.done(record);
}

void Connection::shut(Gone why) {
  if (state_ == State::kClosed) {
    return;
  }
  const auto self = shared_from_this();
  if (state_ == State::kAnswering) {
    if (const auto exchange = active_->exchange.lock()) {
      exchange->gone(why);
      active_->record.facts = std::move(exchange->facts());
    }
    log(why == Gone::kShutdown ? 503 : kClientGone);
  } else if (state_ == State::kFlushing) {
    log(why == Gone::kShutdown ? active_->status : kClientGone);
  }
  close();
}

void Connection::close_if_idle() {
  if (state_ == State::kIdle) {
    close();
  }
}

void Connection::linger() {
  if (ended_ || broken_) {
    close();
    return;
  }
  in_ = {};
  out_ = {};
  out_sent_ = 0;
  channel_->end_writing();
  enter(State::kLingering);
  watch();
}

void Connection::close() {
  if (state_ == State::kClosed) {
    return;
  }
  const auto self = shared_from_this();
  host_.stats.idle -= counted_idle_ ? 1 : 0;
  host_.stats.active -= counted_idle_ ? 0 : 1;
  state_ = State::kClosed;
  host_.loop.cancel(timer_);
  channel_->close();
  active_.reset();
  in_ = {};
  out_ = {};
  host_.closed(*this);
}

std::optional<Connection::TimePoint> Connection::due() const {
  std::optional<TimePoint> due;
  const auto at = [&due](TimePoint time) { due = due ? std::min(*due, time) : time; };
  switch (state_) {
    case State::kIdle:
      at(since_ + limits().idle_timeout);
      break;
    case State::kHead:
      at(since_ + limits().head_timeout);
      break;
    case State::kBody:
      at(active_->body_begin + limits().body_timeout);
      at(active_->window_begin + limits().rate_window);
      break;
    case State::kLingering:
      at(since_ + limits().linger);
      break;
    case State::kAnswering:
      if (active_->begun && !active_->head_sent) {
        at(active_->stream_begin + limits().head_delay);
      } else if (active_->begun && !active_->stream.ping.empty() && unsent() == 0) {
        at(active_->last_write + limits().ping_interval);
      }
      [[fallthrough]];
    case State::kFlushing:
      if (unsent() > 0) {
        at(last_progress_ + limits().write_timeout);
      }
      break;
    case State::kClosed:
      break;
  }
  return due;
}

// Sets the timer. A timer that comes too early looks again; so most deadlines move without a call
// to the loop.
void Connection::arm() {
  const std::optional<TimePoint> next = due();
  if (!next || (timer_ != 0 && timer_due_ <= *next)) {
    return;
  }
  host_.loop.cancel(timer_);
  timer_due_ = *next;
  const auto delay = std::chrono::ceil<std::chrono::milliseconds>(*next - host_.loop.now());
  timer_ =
      host_.loop.after(std::max(delay, std::chrono::milliseconds(0)), [self = weak_from_this()] {
        if (const auto connection = self.lock()) {
          connection->timer_ = 0;
          connection->on_timer();
        }
      });
}

void Connection::on_timer() {
  const TimePoint now = host_.loop.now();
  if (const auto next = due(); next && *next <= now) {
    if (state_ == State::kAnswering || state_ == State::kFlushing) {
      check_writing(now);
    } else {
      check_reading(now);
    }
  }
  if (state_ != State::kClosed) {
    arm();
  }
}

void Connection::check_reading(TimePoint now) {
  if (state_ == State::kIdle || state_ == State::kLingering) {
    close();
    return;
  }
  if (state_ == State::kHead) {
    refuse({.status = 408, .code = "request_timeout", .message = "the head took too long"});
    return;
  }
  const auto window = std::chrono::duration_cast<std::chrono::milliseconds>(limits().rate_window);
  const std::int64_t wanted = kBytesPerSecond * window.count() / 1000;
  const bool slow = now >= active_->window_begin + limits().rate_window &&
                    active_->body_bytes - active_->window_bytes < wanted;
  if (slow || now >= active_->body_begin + limits().body_timeout) {
    refuse({.status = 408, .code = "request_timeout", .message = "the body took too long"});
    return;
  }
  active_->window_begin = now;
  active_->window_bytes = active_->body_bytes;
}

void Connection::check_writing(TimePoint now) {
  if (unsent() > 0 && now >= last_progress_ + limits().write_timeout) {
    shut(Gone::kSlowReader);
    return;
  }
  if (state_ != State::kAnswering || !active_->begun) {
    return;
  }
  if (!active_->head_sent) {
    put_stream_head();
  } else if (now >= active_->last_write + limits().ping_interval) {
    write_stream(active_->stream.ping);
  }
}

}  // namespace quire::server
