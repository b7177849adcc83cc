// Exchange: the answer that a handler holds. Forwards to its connection until the answer has ended.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "loop.h"
#include "message.h"

namespace quire::server {

class Connection;

// An answer of a connection.
// Threads: the loop's thread, but for the destructor: a worker may hold the last reference.
class Exchange final : public Answer {
 public:
  Exchange(Loop& loop, std::shared_ptr<Connection> connection);
  // Fails the answer if it has not ended.
  ~Exchange() override;

  void send(Response response) override;
  void begin(StreamHead head) override;
  void write(std::string bytes) override;
  void end() override;
  void fail(Response refusal, std::string event) override;
  [[nodiscard]] bool writable() const override;
  void on_writable(std::function<void()> call) override;
  void on_gone(std::function<void(Gone)> call) override;
  [[nodiscard]] AnswerFacts& facts() override { return facts_; }

  // Ends the answer, because nobody reads it any more. The connection calls it.
  void gone(Gone why);
  // Notes that writable() is true again. The connection calls it.
  void became_writable();

 private:
  // Takes the connection out, and so ends the answer.
  [[nodiscard]] std::shared_ptr<Connection> take();

  Loop& loop_;
  std::shared_ptr<Connection> connection_;  // null once the answer has ended
  AnswerFacts facts_;
  std::optional<Gone> gone_;
  std::function<void(Gone)> gone_call_;
  std::function<void()> writable_call_;
};

}  // namespace quire::server
