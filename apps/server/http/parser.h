// RequestParser: Beast's parser, which fills a Request. The head went through HeadScanner before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "http/head.h"
#include "message.h"

namespace quire::server {

// Parses one request. Threads: one at a time.
class RequestParser {
 public:
  // `max_body`: a longer body is refused.
  explicit RequestParser(std::int64_t max_body);
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  // Takes a whole head. Returns why it is none.
  [[nodiscard]] std::optional<Refusal> take_head(std::string_view head);
  // Takes bytes of the body, and those that a call before has left.
  // `taken` is set to how many it took: those left come again with more behind them.
  [[nodiscard]] std::optional<Refusal> take_body(std::string_view bytes, std::size_t& taken);
  // Returns true when the body is whole.
  [[nodiscard]] bool done() const;

  // The request that was read; `target` is the one of the request line.
  [[nodiscard]] Request& request();
  [[nodiscard]] const std::string& target() const;
  [[nodiscard]] bool http11() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Returns the phrase of a status: "Not Found". Static memory.
[[nodiscard]] std::string_view reason_of(int status);

}  // namespace quire::server
