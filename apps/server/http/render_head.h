// Writes the heads of responses, and the chunks of streams.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "message.h"

namespace quire::server {

// Facts for a head beside the response itself. Plain data.
struct HeadFacts {
  std::string_view request_id = {};
  std::string_view date = {};
  // Not given: no content-length.
  std::optional<std::size_t> content_length = {};
  bool chunked = false;
  bool close = false;
};

// Returns the head of a response up to its empty line. Drops bytes in names and values that would
// end a line.
[[nodiscard]] std::string render_head(const Response& response, const HeadFacts& facts);

// Appends `bytes` as one chunk of a chunked body.
void append_chunk(std::string& to, std::string_view bytes);

// Returns whether responses of this status have no body.
[[nodiscard]] bool has_no_body(int status);

}  // namespace quire::server
