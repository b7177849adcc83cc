// Lists of endpoints, one for each part of the API.
#pragma once

#include <span>

#include "api/router.h"

namespace quire::server {

[[nodiscard]] std::span<const Endpoint> health_endpoints();
[[nodiscard]] std::span<const Endpoint> model_endpoints();
[[nodiscard]] std::span<const Endpoint> chat_endpoints();
[[nodiscard]] std::span<const Endpoint> completion_endpoints();
[[nodiscard]] std::span<const Endpoint> native_endpoints();
[[nodiscard]] std::span<const Endpoint> token_endpoints();
[[nodiscard]] std::span<const Endpoint> info_endpoints();
[[nodiscard]] std::span<const Endpoint> metrics_endpoints();
[[nodiscard]] std::span<const Endpoint> openapi_endpoints();

}  // namespace quire::server
