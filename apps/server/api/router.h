// Router: which endpoint a method and path mean (rule H6).
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

// * kOpen: no key is needed, and the answer never waits for the model (rule P8).
// * kUser: any key.
// * kAdmin: a key of role admin (rule A6).
enum class Access : std::uint8_t { kOpen, kUser, kAdmin };

// * kNone: answered also while the server drains.
// * kEngine: uses the engine, and is refused while the server drains (rule P5).
enum class Uses : std::uint8_t { kNone, kEngine };

// A parameter of a query. Static data.
struct QueryRule {
  const char* name;
  const char* help;
  // JSON type for openapi.json: "string", "integer", "boolean".
  const char* type = "string";
};

// One endpoint. Static data.
struct Endpoint {
  // "GET", "POST", ... GET answers HEAD, too. "*": any but OPTIONS.
  const char* method;
  // Path, with "{name}" for one segment and "{name...}" for all that is left of the path.
  const char* pattern;
  const char* summary;
  Access access = Access::kUser;
  Uses uses = Uses::kNone;
  // Fields of the body. Null: no body is read.
  const FieldTable* body = nullptr;
  std::span<const QueryRule> query = {};
  // Statuses of success, and words for docs/http.md: "201", "200,201".
  const char* statuses = "200";
  // Media type of a success, beside that of a stream.
  const char* content = "application/json";
  // Sees to the answer. Called by the loop's thread.
  void (*handle)(Services& services, std::shared_ptr<Call> call) = nullptr;
};

// Values of a pattern's names, percent-decoded.
using Captures = std::vector<std::pair<std::string, std::string>>;

struct Match {
  const Endpoint* endpoint = nullptr;
  Captures captures;
};

// Finds endpoints. Built once.
class Router {
 public:
  // `endpoints` are static.
  void add(std::span<const Endpoint> endpoints);
  // Returns the endpoint for a path as the client sent it. HEAD finds that of GET.
  // Errors: 400 for a path that is not UTF-8; 404 `not_found`, 405 `method_not_allowed`; `allow`
  // then names the methods. OPTIONS gives 405, too.
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

// Returns `text` with "%41" read as "A", once. `plus` reads "+" as a blank, as in queries.
[[nodiscard]] std::string percent_decoded(std::string_view text, bool plus = false);

}  // namespace quire::server
