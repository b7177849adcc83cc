// Ids of requests.
#pragma once

#include <string>
#include <string_view>

namespace quire::server {

// Returns whether an id of a client may be used.
[[nodiscard]] bool is_request_id(std::string_view text);

// Returns "req_" and 26 digits of Crockford's base 32: the time, then random bits.
[[nodiscard]] std::string new_request_id();

}  // namespace quire::server
