// Tenants together see what each of them sees alone (invariant 4): the same seeded calls are made
// by several tenants in turn, and by each alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "testing/tenant_fixture.h"

namespace quire::server {
namespace {

constexpr int kTenants = 3;
constexpr int kCallsOfEach = 40;

// A tenant that makes calls at random, and writes down what it is told.
class Walker {
 public:
  Walker(ApiDriver& client, std::string tenant, unsigned seed)
      : client_(client), tenant_(std::move(tenant)), random_(seed) {}

  void step() {
    client_.caller = std::make_shared<const Caller>(Caller{.tenant = tenant_, .role = Role::kUser});
    const AnswerPtr answer = call();
    log_ += std::to_string(answer->status()) + ' ' +
            (answer->response ? shown(json::parse(answer->response->body)) : answer->stream) + '\n';
  }
  [[nodiscard]] const std::string& log() const { return log_; }

 private:
  int pick(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }
  std::string card() { return "Card " + std::to_string(pick(6)) + ". Ada keeps a goose."; }
  std::string any_id() {
    return ids_.empty() || pick(8) == 0
               ? std::string(64, 'd')
               : ids_[static_cast<std::size_t>(pick(static_cast<int>(ids_.size())))];
  }

  AnswerPtr call() {
    switch (pick(8)) {
      case 0:
      case 1:
        return keep(
            client_.post("/v1/chunks", {{"content", card()}, {"metadata", {{"n", pick(3)}}}}));
      case 2:
        return client_.get("/v1/chunks/" + any_id() + "?include=content");
      case 3:
        return client_.get("/v1/chunks?limit=1000");
      case 4:
        return client_.ask("DELETE", "/v1/chunks/" + any_id());
      case 5:
        return client_.get("/v1/chunks/stats");
      case 6:
        return client_.post("/v1/explain", {{"prompt", card() + card()}});
      default:
        return client_.post("/v1/completions",
                            {{"prompt", card() + card()}, {"max_tokens", 3}, {"seed", 5}});
    }
  }
  AnswerPtr keep(AnswerPtr answer) {
    if (answer->status() < 300) {
      ids_.push_back(body_of(*answer).at("chunk_id").as_string().c_str());
    }
    return answer;
  }
  // Returns what may be compared: without names that are new each time, and times. Ids of chunks
  // depend on the tenant, so their order of appearance stands for them.
  std::string shown(const json::value& value) {
    if (const json::object* const object = value.if_object()) {
      std::map<std::string, std::string> members;
      for (const auto& member : *object) {
        const std::string name(member.key());
        const bool varies = name == "id" || name == "created" || name.ends_with("_ms") ||
                            name.ends_with("_at") || name == "last_accessed" || name == "timings" ||
                            name == "request_id" || name == "memory_limit_bytes" ||
                            name == "reason" || name == "message";
        members[name] = varies && !member.value().is_bool() ? "" : shown(member.value());
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
    if (value.is_string() && value.as_string().size() == 64) {
      return "chunk";
    }
    return json::serialize(value);
  }

  ApiDriver& client_;
  std::string tenant_;
  std::mt19937 random_;
  std::vector<std::string> ids_;
  std::string log_;
};

using Tenants = TenantTest;

TEST_F(Tenants, TogetherSeeWhatEachSeesAlone) {
  for (unsigned seed = 1; seed <= 2; ++seed) {
    std::vector<Walker> together;
    for (int i = 0; i < kTenants; ++i) {
      together.emplace_back(client_, name_ + std::to_string(i) + "-" + std::to_string(seed),
                            seed * 100 + static_cast<unsigned>(i));
    }
    std::mt19937 random(seed);
    for (int i = 0; i < kTenants * kCallsOfEach; ++i) {
      together[i % kTenants].step();
    }
    for (int i = 0; i < kTenants; ++i) {
      Walker alone(client_, "alone" + std::to_string(i) + "-" + std::to_string(seed),
                   seed * 100 + static_cast<unsigned>(i));
      for (int call = 0; call < kCallsOfEach; ++call) {
        alone.step();
      }
      EXPECT_EQ(together[static_cast<std::size_t>(i)].log(), alone.log()) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace quire::server
