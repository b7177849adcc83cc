// HeadScanner: finds the end of a request's head. Refuses a head that is too large, or that two
// servers could read in two ways.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "message.h"

namespace quire::server {

// A refusal of bytes that are not a request. Plain data.
struct Refusal {
  int status = 400;
  // Static memory.
  const char* code = "invalid_value";
  std::string message = {};
};

struct HeadLimits {
  std::size_t header_bytes = 16 << 10;
  std::size_t header_fields = 100;
  std::size_t target_bytes = 8 << 10;
};

// Scans the bytes of one head as they come. Looks at each byte once.
class HeadScanner {
 public:
  explicit HeadScanner(HeadLimits limits = {}) : limits_(limits) {}

  // Takes all bytes that have come so far, including those of earlier calls. Returns the size of
  // the head with its empty line, 0 while more is needed, or a refusal.
  struct Outcome {
    std::size_t size = 0;
    std::optional<Refusal> refusal = {};
  };
  [[nodiscard]] Outcome scan(std::string_view bytes);

 private:
  [[nodiscard]] std::optional<Refusal> end_line(std::string_view line);
  [[nodiscard]] std::optional<Refusal> check_size(std::string_view bytes) const;

  HeadLimits limits_;
  std::size_t at_ = 0;          // next byte to look at
  std::size_t line_begin_ = 0;  // first byte of the line that is scanned
  std::size_t fields_begin_ = 0;
  std::size_t num_fields_ = 0;
};

// The framing of a request's body. Plain data.
struct Framing {
  bool chunked = false;
  std::uint64_t content_length = 0;
  [[nodiscard]] bool has_body() const { return chunked || content_length > 0; }
};

// Reads how the body comes. Returns a refusal if the fields contradict each other. `http11` false:
// HTTP/1.0.
[[nodiscard]] std::optional<Refusal> read_framing(const Request& request, bool http11,
                                                  Framing& framing);

// Splits a target into path and query. Sets `host` to the host in the target, if it names one.
[[nodiscard]] std::optional<Refusal> split_target(std::string_view target, Request& request,
                                                  std::string& host);

// Returns whether a field that is a list has the word, in any case.
[[nodiscard]] bool has_word(const Request& request, std::string_view field, std::string_view word);

// Returns whether both are equal but for the case of ASCII letters.
[[nodiscard]] bool same_word(std::string_view a, std::string_view b);

// Returns the text without spaces and tabs at both ends.
[[nodiscard]] std::string_view stripped(std::string_view text);

}  // namespace quire::server
