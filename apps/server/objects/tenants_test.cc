// Tenants together see what each of them sees alone (invariant 4). Four tenants make calls at
// random, each at the same time as the others; then each makes its calls again, alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "testing/mutated_requests.h"
#include "testing/tenant_fixture.h"
#include "testing/test_length.h"

namespace quire::server {
namespace {

constexpr int kTenants = 4;
constexpr std::size_t kMostSequences = 3;

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }
bool is_hex(char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; }

// Returns a text without what differs from run to run: ids, and seconds since something was.
std::string without_names(std::string_view text) {
  constexpr std::size_t kShortestId = 26;
  constexpr std::size_t kShortDigest = 12;  // of a chunk, in sources
  std::string shown;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    while (end < text.size() && is_name(text[end])) {
      ++end;
    }
    const bool age = end > i && text.substr(end).starts_with(" s ago");
    const bool digest =
        end - i == kShortDigest && std::ranges::all_of(text.substr(i, end - i), is_hex);
    if (end - i >= kShortestId || digest || age) {
      shown += age ? "N" : "ID";
    } else {
      shown += text.substr(i, std::max(end, i + 1) - i);
    }
    i = std::max(end, i + 1);
  }
  return shown;
}

bool varies(std::string_view name) {
  return name == "id" || name == "tenant" || name == "last_accessed" || name == "timings" ||
         name == "request_id" || name == "memory_limit_bytes" || name.ends_with("_ms") ||
         name.ends_with("_at") || (name.ends_with("_seconds") && name != "ttl_seconds");
}

// Returns what may be compared: without names that are new each time, and times.
std::string shown(const json::value& value) {
  if (const json::object* const object = value.if_object()) {
    std::map<std::string, std::string> members;
    for (const auto& member : *object) {
      const std::string name(member.key());
      const bool is_time = name == "created" && member.value().is_number();
      members[name] = varies(name) || is_time ? "" : shown(member.value());
    }
    std::string text = "{";
    for (const auto& [name, member] : members) {
      text += name + ":" + member + ",";
    }
    return text + "}";
  }
  if (const json::array* const array = value.if_array()) {
    std::vector<std::string> elements;
    for (const json::value& element : *array) {
      elements.push_back(shown(element));
    }
    std::ranges::sort(elements);  // chunks of one second stand in the order of their ids
    std::string text = "[";
    for (const std::string& element : elements) {
      text += element + ",";
    }
    return text + "]";
  }
  return value.is_string() ? without_names(value.get_string()) : json::serialize(value);
}

// Returns the text of an event of a completion that goes on, or nullopt for other events.
std::optional<std::string> text_part(const json::value& event) {
  const json::object* const object = event.if_object();
  const json::value* const choices = object != nullptr ? object->if_contains("choices") : nullptr;
  if (choices == nullptr || choices->as_array().empty()) {
    return std::nullopt;
  }
  const json::object& choice = choices->as_array().front().as_object();
  if (!choice.at("finish_reason").is_null()) {
    return std::nullopt;
  }
  return std::string(choice.at("text").as_string());
}

// A tenant that makes calls at random, and says what it is told.
class Walker {
 public:
  // `stranger` returns the id of a chunk that is another tenant's, or was nobody's ever.
  Walker(ApiDriver& client, std::string tenant, unsigned seed,
         std::function<std::string()> stranger)
      : client_(client),
        caller_(std::make_shared<const Caller>(Caller{.tenant = std::move(tenant),
                                                      .role = Role::kUser,
                                                      .limits = {.max_completion_tokens = 3}})),
        random_(seed),
        mutated_(seed),
        stranger_(std::move(stranger)) {}

  void begin() {
    client_.caller = caller_;
    made_ = Made::kNothing;
    answer_ = call();
  }
  // Returns what the tenant was told.
  std::string end() {
    client_.finish(*answer_);
    const int status = answer_->status();
    std::string told = std::to_string(status);
    if (made_ == Made::kMutated) {
      return told;  // others may choose tokens by chance
    }
    if (!answer_->response) {
      std::string text;  // how it is cut into events depends on who reads when
      for (const json::value& event : events_of(*answer_)) {
        const std::optional<std::string> part = text_part(event);
        text += part.value_or("");
        told += part ? "" : ' ' + shown(event);
      }
      return told + ' ' + without_names(text);
    }
    if (answer_->response->body.empty()) {
      return told;
    }
    const json::value body = body_of(*answer_);
    if (status < 300 && made_ != Made::kNothing) {
      const bool chunk = made_ == Made::kChunk;
      auto& ids = chunk ? chunks_ : sequences_;
      ids.emplace_back(body.at(chunk ? "chunk_id" : "id").as_string().c_str());
    }
    return told + ' ' + shown(body);
  }
  [[nodiscard]] std::string newest_chunk() const {
    return chunks_.empty() ? std::string(64, 'd') : chunks_.back();
  }

 private:
  enum class Made : std::uint8_t { kNothing, kChunk, kSequence, kMutated };

  int pick(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }
  std::string card() { return "Card " + std::to_string(pick(6)) + ". Ada keeps a goose."; }
  std::string one_of(const std::vector<std::string>& ids) {
    return ids.empty() || pick(8) == 0
               ? stranger_()
               : ids[static_cast<std::size_t>(pick(static_cast<int>(ids.size())))];
  }
  std::string sequence() { return "/v1/sequences/" + one_of(sequences_); }
  AnswerPtr post(std::string target, const json::value& body) {
    return client_.begin("POST", std::move(target), json::serialize(body));
  }
  AnswerPtr get(std::string target) { return client_.begin("GET", std::move(target)); }

  AnswerPtr call() {
    switch (pick(6)) {
      case 0:
        return about_chunks();
      case 1:
        return about_sequences();
      case 2:
        return generate();
      case 3:
        return ask();
      case 4:
        made_ = Made::kMutated;
        return client_.begin(without_clock(mutated_.next()));
      default:
        return client_.begin(without_chance(without_clock(mutated_.next())));
    }
  }
  AnswerPtr about_chunks() {
    switch (pick(8)) {
      case 0:
      case 1:
      case 2:
        made_ = Made::kChunk;
        return post("/v1/chunks", {{"content", card()}, {"metadata", {{"n", pick(3)}}}});
      case 3:
        return get("/v1/chunks/" + one_of(chunks_) + "?include=content");
      case 4:
        return get("/v1/chunks?limit=1000");
      case 5:
        return client_.begin("PATCH", "/v1/chunks/" + one_of(chunks_),
                             json::serialize(json::value{{"metadata", {{"n", pick(9)}}}}));
      case 6:
        return client_.begin("DELETE", "/v1/chunks/" + one_of(chunks_));
      default:
        if (pick(10) == 0) {
          chunks_.clear();
          return client_.begin("DELETE", "/v1/chunks");
        }
        return get("/v1/chunks/stats");
    }
  }
  AnswerPtr about_sequences() {
    if (sequences_.size() > kMostSequences) {
      const std::string oldest = sequences_.front();
      sequences_.erase(sequences_.begin());
      return client_.begin("DELETE", "/v1/sequences/" + oldest);
    }
    switch (pick(6)) {
      case 0:
        made_ = Made::kSequence;
        return post("/v1/sequences", {{"prompt", card()}});
      case 1:
        made_ = Made::kSequence;
        return post(sequence() + "/fork", json::object());
      case 2:
        return post(sequence() + "/append", {{"text", card()}});
      case 3:
        return post(sequence() + "/rollback", {{"drop", 1 + pick(3)}});
      case 4:
        return get(sequence() + "?include=tokens");
      default:
        return post(sequence() + "/generate",
                    {{"sampling", {{"max_tokens", 3}, {"temperature", 0}}}});
    }
  }
  AnswerPtr generate() {
    switch (pick(3)) {
      case 0:
        return post("/v1/completions", {{"prompt", card() + card()},
                                        {"max_tokens", 3},
                                        {"seed", pick(3)},
                                        {"stream", pick(2) == 0}});
      case 1:
        return post("/v1/chat/completions",
                    {{"messages", {{{"role", "user"}, {"content", card()}}}},
                     {"temperature", 0},
                     {"quire", {{"explain", true}}}});
      default:
        return post(
            "/v1/chat/completions",
            {{"messages",
              {{{"role", "user"},
                {"content",
                 {{{"type", "chunk"}, {"chunk_id", one_of(chunks_)}},
                  {{"type", "text"}, {"text", "Where is card " + std::to_string(pick(3))}}}}}}},
             {"temperature", 0}});
    }
  }
  AnswerPtr ask() {
    switch (pick(4)) {
      case 0:
        return post("/v1/explain", {{"prompt", card() + card()}});
      case 1:
        return get("/v1/requests/" + stranger_());
      case 2:
        return client_.begin("PUT", "/v1/sessions/s" + std::to_string(pick(3)), "{}");
      default:
        return client_.begin("DELETE", "/v1/sessions/s" + std::to_string(pick(3)));
    }
  }
  // Returns a request that lets nothing expire, since the runs do not take equally long.
  static Request without_clock(Request request) {
    if (request.body.find("ttl") != std::string::npos ||
        request.body.find("\\u") != std::string::npos) {
      request.body = "{}";
    }
    return request;
  }
  // Returns a request that generates nothing, whose answer can be compared.
  static Request without_chance(Request request) {
    const std::string_view path = request.path;
    const bool generates = path.find("complet") != path.npos || path.find("generat") != path.npos;
    if (generates || path.find("metrics") != path.npos || path.find("openapi") != path.npos) {
      request.method = "GET";
      request.path = "/v1/chunks";
      request.body.clear();
    }
    if (request.query.find("limit") != std::string::npos ||
        request.query.find("after") != std::string::npos) {
      request.query.clear();  // which chunks a page has goes by their ids
    }
    return request;
  }

  ApiDriver& client_;
  std::shared_ptr<const Caller> caller_;
  std::mt19937 random_;
  MutatedRequests mutated_;
  std::function<std::string()> stranger_;
  std::vector<std::string> chunks_, sequences_;
  Made made_ = Made::kNothing;
  AnswerPtr answer_;
};

using Tenants = TenantTest;

TEST_F(Tenants, TogetherSeeWhatEachSeesAlone) {
  const int calls = test_length(100'000, 600) / kTenants;
  std::vector<std::unique_ptr<Walker>> walkers;
  for (int i = 0; i < kTenants; ++i) {
    walkers.push_back(std::make_unique<Walker>(
        client_, name_ + std::to_string(i), static_cast<unsigned>(i), [&walkers, i] {
          return walkers[static_cast<std::size_t>((i + 1) % kTenants)]->newest_chunk();
        }));
  }
  std::vector<std::vector<std::string>> together(kTenants);
  for (int call = 0; call < calls; ++call) {
    for (const auto& walker : walkers) {
      walker->begin();
    }
    for (std::size_t i = 0; i < walkers.size(); ++i) {
      together[i].push_back(walkers[i]->end());
    }
  }
  for (std::size_t i = 0; i < walkers.size(); ++i) {
    Walker alone(client_, "alone" + std::to_string(i), static_cast<unsigned>(i),
                 [] { return std::string(64, 'd'); });
    for (int call = 0; call < calls; ++call) {
      alone.begin();
      ASSERT_EQ(alone.end(), together[i][static_cast<std::size_t>(call)])
          << "call " << call << " of tenant " << i;
    }
  }
}

}  // namespace
}  // namespace quire::server
