#include "scene.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "dense_oracle.h"
#include "quire/chunks.h"
#include "quire/types.h"

namespace quire::chunks {
namespace {

enum class Kind : std::uint8_t { kBos, kSystem, kContext, kQuery };

Matrix last_rows(const Matrix& all, std::size_t count) {
  const auto values = static_cast<std::ptrdiff_t>(count * all.columns);
  return {.rows = count,
          .columns = all.columns,
          .values = {all.values.end() - values, all.values.end()}};
}

}  // namespace

struct Scene::Token {
  Kind kind;
  std::int64_t segment = 0;   // which context
  std::int64_t used = 0;      // position
  std::int64_t computed = 0;  // position when its KV was computed
  std::int32_t index = -1;    // in the joined ids
  bool fresh = false;         // computed again
};

// Rows of the base mode, behind them those computed again, then the query's.
struct Scene::Pass {
  Ids ids;
  std::vector<Token> tokens;
  std::set<std::int32_t> replaced;  // indices of which there is a fresh row
  bool anchored = false;
  std::optional<LayerRange> layers = {};
  std::optional<std::int32_t> only_layer = {};
  // By contexts of which the first sees the second: how far from where that was computed.
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> moved = {};

  void add(TokenId id, const Token& token) {
    ids.push_back(id);
    tokens.push_back(token);
  }

  // Returns whether fresh rows stand for the old ones in a layer.
  [[nodiscard]] bool replaces(std::size_t layer) const {
    return !layers ||
           (std::cmp_greater(layer, layers->first) && std::cmp_less_equal(layer, layers->last)) ||
           (layer == 0 && layers->first == 0);
  }

  [[nodiscard]] std::optional<std::int64_t> sight(std::size_t layer, std::size_t q,
                                                  std::size_t k) const {
    const Token& by = tokens[q];
    const Token& of = tokens[k];
    const bool as_before = by.fresh && layers && std::cmp_less(layer, layers->first);
    if (by.kind == Kind::kQuery || (by.fresh && !as_before)) {
      const bool is_fresh = by.kind == Kind::kQuery && only_layer
                                ? std::cmp_equal(layer, *only_layer)
                                : replaces(layer);
      const bool hidden = replaced.contains(of.index) && of.fresh != is_fresh;
      if (of.kind == Kind::kBos || hidden || of.index > by.index) {
        return std::nullopt;
      }
      return by.used - of.used;
    }
    const bool same = by.kind == of.kind && by.segment == of.segment && of.index <= by.index;
    const bool above = by.kind == Kind::kContext &&
                       (of.kind == Kind::kBos || (of.kind == Kind::kSystem && anchored));
    const auto other = by.kind == Kind::kContext && of.kind == Kind::kContext
                           ? moved.find({by.segment, of.segment})
                           : moved.end();
    if (of.fresh || !(same || above || other != moved.end())) {
      return std::nullopt;
    }
    return by.computed - of.computed - (other == moved.end() ? 0 : other->second);
  }

  Matrix run(const DenseModel& model, Watch* watch = nullptr) const {
    return model.forward(ids, LayerSight([this](std::size_t n, std::size_t q, std::size_t k) {
                           return sight(n, q, k);
                         }),
                         watch);
  }
};

void Scene::place(Positions positions) {
  std::int64_t next = 0;
  const auto put = [&](Segment& segment, std::int64_t position) {
    segment.position = position;
    next = std::max(next, position + std::ssize(segment.ids));
  };
  if (system) {
    put(*system, 0);
  }
  const std::int64_t start = next;
  for (Segment& context : contexts) {
    put(context, positions == Positions::kParallel ? start : next);
  }
  put(query, next);
}

std::int32_t Scene::first_context() const {
  return system ? static_cast<std::int32_t>(std::ssize(system->ids)) : 0;
}

std::int32_t Scene::num_context_tokens() const {
  std::size_t count = 0;
  for (const Segment& context : contexts) {
    count += context.ids.size();
  }
  return static_cast<std::int32_t>(count);
}

Scene::Pass Scene::pass() const {
  Pass pass{.replaced = {recomputed.begin(), recomputed.end()},
            .anchored = mode == ReuseMode::kAnchored && system,
            .layers = layers,
            .only_layer = only_layer};
  std::int32_t index = 0;
  std::vector<std::pair<TokenId, Token>> again;
  const auto put = [&](const Segment& segment, Kind kind, std::int64_t number, std::int64_t at) {
    for (std::int64_t i = 0; i < std::ssize(segment.ids); ++i, ++index) {
      const TokenId id = segment.ids[static_cast<std::size_t>(i)];
      Token token{kind, number, segment.position + i, at + i, index, false};
      pass.add(id, token);
      if (pass.replaced.contains(index)) {
        token.fresh = true;
        again.emplace_back(id, token);
      }
    }
  };
  if (bos_sink) {
    pass.add(*bos_sink, {.kind = Kind::kBos});
  }
  if (system) {
    put(*system, Kind::kSystem, 0, computed_in_place ? system->position : 0);
  }
  const std::int64_t before = pass.anchored ? std::ssize(system->ids) : bos_sink ? 1 : 0;
  std::vector<std::int64_t> starts;  // where contexts were computed
  for (std::int64_t i = 0; i < std::ssize(contexts); ++i) {
    const Segment& context = contexts[static_cast<std::size_t>(i)];
    std::int64_t start = before;
    for (const std::int64_t other :
         pass.anchored || !system ? context.behind : std::vector<std::int64_t>()) {
      pass.moved[{i, other}] = start - starts[static_cast<std::size_t>(other)];
      start += std::ssize(contexts[static_cast<std::size_t>(other)].ids);
    }
    starts.push_back(start);
    put(context, Kind::kContext, i, computed_in_place ? context.position : start);
  }
  for (const auto& [id, token] : again) {
    pass.add(id, token);
  }
  put(query, Kind::kQuery, 0, query.position);
  return pass;
}

Matrix Scene::logits(const DenseModel& model) const {
  return last_rows(pass().run(model), query.ids.size());
}

Matrix Scene::exact_logits(const DenseModel& model) const {
  Ids ids = system ? system->ids : Ids();
  for (const Segment& context : contexts) {
    ids.insert(ids.end(), context.ids.begin(), context.ids.end());
  }
  ids.insert(ids.end(), query.ids.begin(), query.ids.end());
  return last_rows(model.forward(ids, causal()), query.ids.size());
}

std::vector<double> Scene::value_deviations(const DenseModel& model) const {
  const std::int32_t first = first_context();
  const std::int32_t count = num_context_tokens();
  Scene all = *this;
  all.recomputed.clear();
  for (std::int32_t i = 0; i < count; ++i) {
    all.recomputed.push_back(first + i);
  }
  const Pass pass = all.pass();
  Watch watch;
  pass.run(model, &watch);
  std::vector<double> scores(static_cast<std::size_t>(count));
  if (watch.values.rows == 0) {
    return scores;
  }
  for (std::size_t i = 0; i < scores.size(); ++i) {  // base rows start with the joined ids
    const auto stored = watch.values.row(static_cast<std::size_t>(first) + i);
    const auto moved = watch.values.row(static_cast<std::size_t>(first) + scores.size() + i);
    for (std::size_t d = 0; d < stored.size(); ++d) {
      scores[i] += (moved[d] - stored[d]) * (moved[d] - stored[d]);
    }
  }
  return scores;
}

std::vector<double> Scene::query_attention(const DenseModel& model) const {
  Scene base = *this;
  base.recomputed.clear();
  const Pass pass = base.pass();
  Watch watch{.first_row = pass.ids.size() - query.ids.size()};
  pass.run(model, &watch);
  const auto first = watch.looked.begin() + first_context();
  return {first, first + num_context_tokens()};
}

}  // namespace quire::chunks
