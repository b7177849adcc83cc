#include "http/exchange.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "api/errors.h"
#include "http/connection.h"
#include "loop.h"
#include "message.h"

namespace quire::server {

Exchange::Exchange(Loop& loop, std::shared_ptr<Connection> connection)
    : loop_(loop), connection_(std::move(connection)) {}

Exchange::~Exchange() {
  if (connection_ != nullptr) {
    loop_.post([connection = std::move(connection_)] {
      connection->fail(error_response(500, "internal", "the request was dropped"), {}, {});
    });
  }
}

std::shared_ptr<Connection> Exchange::take() {
  gone_call_ = {};
  writable_call_ = {};
  return std::exchange(connection_, nullptr);
}

void Exchange::send(Response response) {
  if (const auto connection = take()) {
    connection->send(std::move(response), std::move(facts_));
  }
}

void Exchange::begin(StreamHead head) {
  if (connection_ != nullptr) {
    connection_->begin_stream(std::move(head));
  }
}

void Exchange::write(std::string bytes) {
  if (connection_ != nullptr) {
    connection_->write_stream(bytes);
  }
}

void Exchange::end() {
  if (const auto connection = take()) {
    connection->end_stream(std::move(facts_));
  }
}

void Exchange::fail(Response refusal, std::string event) {
  if (const auto connection = take()) {
    connection->fail(std::move(refusal), event, std::move(facts_));
  }
}

bool Exchange::writable() const { return connection_ == nullptr || connection_->writable(); }

void Exchange::on_writable(std::function<void()> call) {
  if (connection_ != nullptr) {
    writable_call_ = std::move(call);
  }
}

void Exchange::on_gone(std::function<void(Gone)> call) {
  if (gone_) {
    call(*gone_);
  } else if (connection_ != nullptr) {
    gone_call_ = std::move(call);
  }
}

void Exchange::gone(Gone why) {
  if (connection_ == nullptr) {
    return;
  }
  gone_ = why;
  const auto call = std::exchange(gone_call_, {});
  const auto connection = take();
  if (call) {
    call(why);
  }
}

void Exchange::became_writable() {
  if (const auto call = writable_call_) {
    call();
  }
}

}  // namespace quire::server
