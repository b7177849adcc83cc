// RequestParser: fills a Request by Beast's parser. HeadScanner checks the head before.
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
  // Makes a parser that refuses a body of more than `max_body` bytes.
  explicit RequestParser(std::int64_t max_body);
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  // Takes a whole head. Returns a refusal if it is malformed.
  [[nodiscard]] std::optional<Refusal> take_head(std::string_view head);
  // Takes bytes of the body. Sets `taken` to how many it took; the caller passes the rest again
  // with more bytes behind them. Returns a refusal of a malformed body.
  [[nodiscard]] std::optional<Refusal> take_body(std::string_view bytes, std::size_t& taken);
  // Returns whether the body is complete.
  [[nodiscard]] bool done() const;

  // Returns the request that was read. `target` is the one of the request line.
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
