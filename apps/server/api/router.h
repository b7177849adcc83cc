// Router: finds the endpoint of a method and path.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/errors.h"
#include "api/fields.h"

namespace quire::server {

struct Call;
struct Services;

// Keys that an endpoint needs.
// * kOpen: none, and the answer never waits for the model.
// * kUser: any key.
// * kAdmin: a key of role admin.
enum class Access : std::uint8_t { kOpen, kUser, kAdmin };

// Use of the engine.
// * kNone: answered also while the server drains.
// * kEngine: refused while the server drains.
enum class Uses : std::uint8_t { kNone, kEngine };

// A query parameter. Static data.
struct QueryRule {
  const char* name;
  const char* help;
  // JSON type for openapi.json: "string", "integer", "boolean".
  const char* type = "string";
};

// One endpoint. Static data.
struct Endpoint {
  // "GET", "POST", ... GET also answers HEAD. "*": any method but OPTIONS.
  const char* method;
  // Path, with "{name}" for one segment and "{name...}" for the rest of the path.
  const char* pattern;
  const char* summary;
  Access access = Access::kUser;
  Uses uses = Uses::kNone;
  // Fields of the body. Null: no body is read.
  const FieldTable* body = nullptr;
  std::span<const QueryRule> query = {};
  // Statuses of success, for docs/http.md: "201", "200,201".
  const char* statuses = "200";
  // Media type of a success that does not stream.
  const char* content = "application/json";
  // Answers a call, now or later. The loop's thread calls it.
  void (*handle)(Services& services, std::shared_ptr<Call> call) = nullptr;
};

// Values of the names in a pattern, percent-decoded.
using Captures = std::vector<std::pair<std::string, std::string>>;

struct Match {
  const Endpoint* endpoint = nullptr;
  Captures captures;
};

// Finds endpoints. Built once.
class Router {
 public:
  // Adds endpoints, which must be static.
  void add(std::span<const Endpoint> endpoints);
  // Returns the endpoint for a path as the client sent it. HEAD finds the endpoint of GET.
  // Errors: 400 for a path that is not UTF-8; 404 `not_found`; 405 `method_not_allowed`, also for
  // OPTIONS. With 405, `allow` names the methods.
  [[nodiscard]] Checked<Match> find(std::string_view method, std::string_view path,
                                    std::string& allow) const;
  [[nodiscard]] const std::vector<const Endpoint*>& endpoints() const { return endpoints_; }

 private:
  struct Pattern {
    std::vector<std::string> segments;
    const Endpoint* endpoint = nullptr;
  };
  std::vector<Pattern> patterns_;
  std::vector<const Endpoint*> endpoints_;
  // Patterns without names, by their whole path.
  std::multimap<std::string, const Endpoint*, std::less<>> plain_;
};

// Returns `text` with each "%41" decoded to "A", once. `plus` decodes "+" to a blank, as queries
// need.
[[nodiscard]] std::string percent_decoded(std::string_view text, bool plus = false);

}  // namespace quire::server
