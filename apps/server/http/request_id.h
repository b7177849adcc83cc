// Ids of requests (rule H7).
#pragma once

#include <string>
#include <string_view>

namespace quire::server {

// Returns true for an id of a client that is taken over.
[[nodiscard]] bool is_request_id(std::string_view text);

// Returns "req_" and 26 digits of Crockford's base 32: the time, then random bits.
[[nodiscard]] std::string new_request_id();

}  // namespace quire::server
