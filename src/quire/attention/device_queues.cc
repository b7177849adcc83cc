#include "quire/attention/device_queues.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "quire/attention/device_cuts.h"
#include "quire/attention/device_plan.h"

namespace quire::attention {
namespace {

using Queue = DevicePlan::Queue;

// Returns the CTAs of the families, by what these cost.
DevicePlan::CtaGroup choose_cta_group(const QueueShape& shape, const DeviceCuts& cuts,
                                      const DevicePlan& plan) {
  const std::int32_t width = shape.width;
  if (cuts.list_capacity > 0) {
    const auto for_many = static_cast<std::int32_t>(width * cuts.lists.workers);
    return {.few_workers = shape.workers - for_many, .many_workers = for_many, .pairs = width - 1};
  }
  const auto queued = [&](const std::vector<DevicePlan::WorkItem>& items) {
    return std::ssize(items) * shape.kv_heads;
  };
  const std::int64_t all = shape.workers, many = queued(plan.many), few = queued(plan.few);
  const std::int64_t wanted =
      std::lround(cuts.many_share * static_cast<float>(all)) / width * width;
  const std::int64_t for_many =
      few == 0    ? std::min(many, all)
      : many == 0 ? 0
                  : std::min(many, std::clamp<std::int64_t>(wanted, width,
                                                            std::max<std::int64_t>(all - 1, 1)));
  return {.few_workers = static_cast<std::int32_t>(std::min(few, all - for_many)),
          .many_workers = static_cast<std::int32_t>(for_many),
          .pairs = width - 1};
}

// Returns a queue with an item of each round, from alternating ends of it, since items are sorted
// by length.
Queue rounds_of(std::int32_t worker, std::int32_t workers, std::int32_t queued) {
  const std::int32_t whole = queued / workers, left = queued % workers, back = workers - 1 - worker;
  return {.first = worker,
          .strides = {2 * back + 1, 2 * worker + 1},
          .count = whole + ((whole % 2 == 0 ? worker : back) < left ? 1 : 0)};
}

// Gives the queue to a CTA of many columns, or to both of a pair.
void queue_many(std::int32_t width, std::int32_t worker, const Queue& queue,
                std::vector<Queue>& queues) {
  std::fill_n(queues.begin() + std::ptrdiff_t{2} * width * worker, 2 * width, queue);
}

// Queues items of many columns by their lists.
void queue_lists(const QueueShape& shape, std::int64_t heads_of_last,
                 std::span<const std::int64_t> lists, std::vector<Queue>& queues) {
  std::int32_t worker = 0;
  for (std::size_t first = 0, end = 0; first < lists.size(); first = end) {
    while (end < lists.size() && lists[end] == lists[first]) {
      ++end;
    }
    const std::int32_t count = static_cast<std::int32_t>(end - first) / shape.width;
    const std::int32_t of_list = static_cast<std::int32_t>(first) / shape.width * shape.kv_heads;
    const auto heads = static_cast<std::int32_t>(end == lists.size() ? heads_of_last : 1);
    for (std::int32_t head = 0; head < shape.kv_heads; head += heads) {
      const bool all = heads == 1;
      const std::int32_t stride = all ? shape.kv_heads : 1;
      queue_many(
          shape.width, worker++,
          {.first = of_list + head, .strides = {stride, stride}, .count = all ? count : heads},
          queues);
    }
  }
}

// Queues items of many columns in rounds.
void queue_many_rounds(const QueueShape& shape, DevicePlan& plan) {
  const std::int32_t workers = plan.cta_group.many_workers / shape.width;
  const auto items = static_cast<std::int32_t>(plan.many.size()) / shape.width;
  for (std::int32_t worker = 0; worker < workers; ++worker) {
    queue_many(shape.width, worker, rounds_of(worker, workers, items * shape.kv_heads),
               plan.queues);
  }
}

// Queues items of few columns, for each half of a CTA.
void queue_few_rounds(const QueueShape& shape, DevicePlan& plan) {
  const DevicePlan::CtaGroup& group = plan.cta_group;
  const std::int32_t halves = 2 * group.few_workers;
  const auto queued = static_cast<std::int32_t>(plan.few.size()) * shape.kv_heads;
  for (std::int32_t half = 0; half < halves; ++half) {
    const std::int64_t cta = group.many_workers + half % group.few_workers;
    plan.queues[static_cast<std::size_t>(2 * cta + half / group.few_workers)] =
        rounds_of(half, halves, queued);
  }
}

// Writes into each queue what it says beside the numbers of its items.
void introduce_items(const QueueShape& shape, DevicePlan& plan) {
  using Kind = Queue::Kind;
  const DevicePlan::CtaGroup& group = plan.cta_group;
  const std::int32_t ctas = group.many_workers + group.few_workers;
  for (std::int32_t half = 0; half < 2 * ctas; ++half) {
    const std::int32_t cta = half / 2;
    const bool many = cta < group.many_workers;
    Queue& queue = plan.queues[static_cast<std::size_t>(half)];
    queue.kind = !many ? Kind::kFew : shape.width == 2 ? Kind::kPair : Kind::kMany;
    queue.workers = many ? group.many_workers : group.few_workers;
    if (queue.count > 0) {
      const std::int32_t number = queue.first / shape.kv_heads;
      const std::int32_t at = many ? number * shape.width + cta % shape.width : number;
      queue.item = (many ? plan.many : plan.few)[static_cast<std::size_t>(at)];
    }
  }
}

// Mixes CTAs of the two families. Neighbours start on neighbouring multiprocessors, which share a
// road to the second-level cache. Where CTAs of few columns are many, some roads would be full and
// others empty.
void spread_kinds(const DevicePlan::CtaGroup& group, std::vector<Queue>& queues) {
  const std::int32_t of_many = group.many_workers / 2;
  const std::int32_t pairs = of_many + group.few_workers / 2;
  const std::vector<Queue> from = queues;
  for (std::int32_t pair = 0; pair < pairs; ++pair) {
    const std::int32_t before = pair * of_many / pairs, with = (pair + 1) * of_many / pairs;
    const std::int32_t taken = with > before ? before : of_many + pair - before;
    std::copy_n(from.begin() + std::ptrdiff_t{4} * taken, 4,
                queues.begin() + std::ptrdiff_t{4} * pair);
  }
}

}  // namespace

void fill_queues(const QueueShape& shape, const DeviceCuts& cuts,
                 std::span<const std::int64_t> lists, DevicePlan& plan) {
  plan.queues.assign(static_cast<std::size_t>(shape.workers + 1) / 2 * 4, {});
  plan.cta_group = choose_cta_group(shape, cuts, plan);
  if (cuts.list_capacity > 0) {
    queue_lists(shape, cuts.lists.heads_of_last, lists, plan.queues);
  } else {
    queue_many_rounds(shape, plan);
  }
  queue_few_rounds(shape, plan);
  introduce_items(shape, plan);
  if (shape.width == 2 && plan.cta_group.many_workers <= 2 * plan.cta_group.few_workers) {
    spread_kinds(plan.cta_group, plan.queues);
  }
}

}  // namespace quire::attention
