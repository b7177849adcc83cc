// Host time of a prefix hit: opening and closing a sequence whose prompt is in the ledger's index.
// Bar: at most 1 ms for 8,192 tokens.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ratio>
#include <vector>

#include "quire/kv/ledger.h"
#include "quire/types.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 101;

std::vector<quire::TokenId> prompt_of(int tokens) {
  std::vector<quire::TokenId> ids;
  ids.reserve(static_cast<std::size_t>(tokens) + 1);
  for (int i = 0; i < tokens + 1; ++i) {
    ids.push_back((i * 7919) % 32000);
  }
  return ids;
}

double median_hit_microseconds(int tokens) {
  quire::kv::Ledger ledger({.num_blocks = 4096, .block_tokens = 32});
  const auto ids = prompt_of(tokens);
  const auto cold = ledger.sequences().open(ids, true);
  if (!ledger.sequences().extend(cold, tokens).ok()) {
    return -1;
  }
  ledger.sequences().advance(cold, tokens);
  ledger.sequences().close(cold);
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = Clock::now();
    const auto warm = ledger.sequences().open(ids, true);
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    if (ledger.sequences().num_computed(warm) != tokens) {
      return -1;
    }
    ledger.sequences().close(warm);
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2];
}

}  // namespace

int main() {
  std::printf("%10s %16s\n", "tokens", "hit [us]");
  bool fast = true;
  for (const int tokens : {1024, 8192, 65536}) {
    const double micros = median_hit_microseconds(tokens);
    std::printf("%10d %16.1f\n", tokens, micros);
    fast = fast && micros >= 0 && (tokens != 8192 || micros <= 1000);
  }
  return fast ? 0 : 1;
}
