// RecordedAnswer: an answer that keeps what it is given.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "message.h"

namespace quire::server {

// Keeps a response, or the bytes of a stream. Threads: the test's.
class RecordedAnswer final : public Answer {
 public:
  void send(Response response) override {
    if (!over) {
      over = true;
      this->response = std::move(response);
    }
  }
  void begin(StreamHead given) override {
    if (!over) {
      head = std::move(given);
    }
  }
  void write(std::string bytes) override {
    if (!over) {
      stream += bytes;
      ++writes;
    }
  }
  void end() override { over = ended = ended || !over; }
  void fail(Response refusal, std::string event) override {
    if (over) {
      return;
    }
    over = true;
    failed = true;
    if (stream.empty()) {
      response = std::move(refusal);
    } else {
      stream += event;
    }
  }
  [[nodiscard]] bool writable() const override { return is_writable; }
  void on_writable(std::function<void()> call) override { writable_call = std::move(call); }
  void on_gone(std::function<void(Gone)> call) override {
    if (gone) {
      call(*gone);
    } else {
      gone_call = std::move(call);
    }
  }
  [[nodiscard]] AnswerFacts& facts() override { return its_facts; }

  // Does as a client that goes away.
  void leave(Gone why = Gone::kClient) {
    gone = why;
    if (!std::exchange(over, true) && gone_call) {
      std::exchange(gone_call, {})(why);
    }
  }
  // Does as a reader that stops, or goes on.
  void set_writable(bool writable) {
    is_writable = writable;
    if (writable && writable_call) {
      writable_call();
    }
  }
  [[nodiscard]] int status() const { return response ? response->status : head ? 200 : 0; }
  [[nodiscard]] std::string header(std::string_view name) const {
    const Response* const from = response ? &*response : head ? &head->head : nullptr;
    for (const HeaderField& field : from ? from->headers : std::vector<HeaderField>()) {
      if (field.name == name) {
        return field.value;
      }
    }
    return {};
  }

  std::optional<Response> response;
  std::optional<StreamHead> head;
  std::string stream;
  int writes = 0;
  bool over = false, ended = false, failed = false;
  bool is_writable = true;
  std::optional<Gone> gone;
  AnswerFacts its_facts;
  std::function<void()> writable_call;
  std::function<void(Gone)> gone_call;
};

}  // namespace quire::server
