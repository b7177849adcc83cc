// Makes openapi.json and docs/http.md from the tables of endpoints and fields.
#pragma once

#include <string>

#include "api/json.h"
#include "api/router.h"

namespace quire::server {

// Returns the description of the API as OpenAPI 3.1.
[[nodiscard]] json::object openapi_json(const Router& router);
// Returns JSON with line breaks, for files.
[[nodiscard]] std::string pretty_json(const json::value& value);
// Returns the part of docs/http.md that comes from the tables.
[[nodiscard]] std::string http_page(const Router& router);

}  // namespace quire::server
