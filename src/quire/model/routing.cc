#include "quire/model/routing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "quire/model/layer_plan.h"

namespace quire::model {
namespace {

constexpr std::size_t kMaxExperts = 1024;

// Tells whether logit `a` ranks before `b`; NaN is the largest.
bool is_larger(float a, float b) { return std::isnan(a) ? !std::isnan(b) : a > b; }

// Sets `ids` to those of the largest scores, in ascending order; score_of(id) gives one.
template <class Score>
void choose_largest(std::size_t experts, std::span<std::int32_t> ids, Score score_of) {
  std::size_t count = 0;  // of ids so far, the largest score first
  for (std::size_t id = 0; id < experts; ++id) {
    const float score = score_of(id);
    std::size_t at = count;
    while (at > 0 && is_larger(score, score_of(static_cast<std::size_t>(ids[at - 1])))) {
      --at;
    }
    if (at == ids.size()) {
      continue;
    }
    count = std::min(count + 1, ids.size());
    std::copy_backward(ids.begin() + static_cast<std::ptrdiff_t>(at),
                       ids.begin() + static_cast<std::ptrdiff_t>(count) - 1,
                       ids.begin() + static_cast<std::ptrdiff_t>(count));
    ids[at] = static_cast<std::int32_t>(id);
  }
  std::ranges::sort(ids);
}

// Returns the rank of the group of `size` experts from `first` on.
template <class Score>
float group_rank(std::size_t first, std::size_t size, bool pairs, Score score_of) {
  float most = score_of(first);
  float next = -std::numeric_limits<float>::infinity();
  for (std::size_t id = first + 1; id < first + size; ++id) {
    const float score = score_of(id);
    if (is_larger(score, most)) {
      next = most;
      most = score;
    } else if (is_larger(score, next)) {
      next = score;
    }
  }
  return pairs ? most + next : most;
}

// Sets `ids` to those of the largest scores, of the groups that rank first where there are some.
template <class Score>
void choose_of_groups(const Experts& experts, std::span<std::int32_t> ids, Score score_of) {
  const auto count = static_cast<std::size_t>(experts.count);
  if (experts.groups == 1) {
    choose_largest(count, ids, score_of);
    return;
  }
  const auto groups = static_cast<std::size_t>(experts.groups);
  const std::size_t size = count / groups;
  const bool pairs =
      experts.rule == RouterRule::kSigmoidOfAll || experts.rule == RouterRule::kSigmoidOfChosen;
  std::array<std::int32_t, kMaxExperts> kept_ids;  // NOLINT: filled by the next call
  const std::span<std::int32_t> kept =
      std::span(kept_ids).first(static_cast<std::size_t>(experts.chosen_groups));
  choose_largest(groups, kept, [&](std::size_t group) {
    return group_rank(group * size, size, pairs, score_of);
  });
  const auto id_of = [&](std::size_t place) {
    return static_cast<std::size_t>(kept[place / size]) * size + place % size;
  };
  choose_largest(kept.size() * size, ids,
                 [&](std::size_t place) { return score_of(id_of(place)); });
  for (std::int32_t& id : ids) {
    id = static_cast<std::int32_t>(id_of(static_cast<std::size_t>(id)));
  }
}

// Chooses by sigmoids, which overwrite the logits.
void choose_by_sigmoid(const Experts& experts, std::span<const float> bias, std::span<float> logits,
                       std::span<std::int32_t> ids, std::span<float> weights) {
  for (float& logit : logits) {
    logit = static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(logit))));
  }
  choose_of_groups(experts, ids, [&](std::size_t id) {
    return bias.empty() ? logits[id] : logits[id] + bias[id];
  });
  double sum = 0;
  for (const std::int32_t id : ids) {
    sum += logits[static_cast<std::size_t>(id)];
  }
  const double divisor =
      experts.rule == RouterRule::kSigmoidOfChosen ? sum + experts.sum_epsilon : 1.0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    weights[i] = static_cast<float>(logits[static_cast<std::size_t>(ids[i])] / divisor *
                                    experts.weight_scale);
  }
}

}  // namespace

void choose_experts(const Experts& experts, std::span<const float> bias, std::span<float> logits,
                    std::span<std::int32_t> ids, std::span<float> weights) {
  if (experts.rule == RouterRule::kSigmoidOfAll || experts.rule == RouterRule::kSigmoidOfChosen) {
    choose_by_sigmoid(experts, bias, logits, ids, weights);
    return;
  }
  choose_of_groups(experts, ids, [&](std::size_t id) { return logits[id]; });
  double most = logits[static_cast<std::size_t>(ids.front())];
  for (const std::int32_t id : ids) {
    most = std::max<double>(most, logits[static_cast<std::size_t>(id)]);
  }
  const auto power = [&](float logit) { return std::exp(static_cast<double>(logit) - most); };
  double sum = 0;
  if (experts.rule == RouterRule::kSoftmaxOfAll) {
    for (const float logit : logits) {
      sum += power(logit);
    }
  } else {
    for (const std::int32_t id : ids) {
      sum += power(logits[static_cast<std::size_t>(id)]);
    }
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    weights[i] = static_cast<float>(power(logits[static_cast<std::size_t>(ids[i])]) / sum *
                                    experts.weight_scale);
  }
}

void group_rows(const Experts& experts, std::span<const std::int32_t> ids,
                std::span<const float> weights, Routing& routing) {
  const auto count = static_cast<std::size_t>(experts.count);
  const auto chosen = static_cast<std::size_t>(experts.chosen);
  routing.groups.assign(count, {});
  routing.rows.resize(ids.size());
  routing.weights.resize(ids.size());
  routing.places.resize(ids.size());
  for (const std::int32_t id : ids) {
    ++routing.groups[static_cast<std::size_t>(id)].rows;
  }
  std::int32_t first = 0;
  for (std::size_t id = 0; id < count; ++id) {
    Routing::Group& group = routing.groups[id];
    group.expert = static_cast<std::int32_t>(id);
    group.first = first;
    first += group.rows;
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto place =
        static_cast<std::size_t>(routing.groups[static_cast<std::size_t>(ids[i])].first++);
    routing.rows[place] = static_cast<std::int32_t>(i / chosen);
    routing.weights[place] = weights[i];
    routing.places[i] = static_cast<std::int32_t>(place);
  }
  for (Routing::Group& group : routing.groups) {
    group.first -= group.rows;
  }
  std::erase_if(routing.groups, [](const Routing::Group& group) { return group.rows == 0; });
}

}  // namespace quire::model
