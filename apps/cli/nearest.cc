#include "nearest.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::cli {
namespace {

constexpr std::size_t kLeastBeginning = 3;  // letters, behind dashes, that may stand for a name

// Returns how many letters are left out, added, changed or swapped with the next.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    last[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({changed, last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
    std::swap(before_last, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::string_view without_dashes(std::string_view word) {
  return word.substr(std::min(word.find_first_not_of('-'), word.size()));
}

}  // namespace

std::string in_lower_case(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

std::string nearest(std::string_view word, const std::vector<std::string>& names) {
  const std::string_view bare = without_dashes(word);
  std::string best;
  std::size_t least = std::max<std::size_t>(1, bare.size() / 3) + 1;
  for (const std::string& name : names) {
    const std::string_view right = without_dashes(name);
    // Names of one or two letters are near to everything.
    const std::size_t apart = right.size() < kLeastBeginning ? least : distance(bare, right);
    if (apart < least) {
      least = apart;
      best = name;
    }
  }
  const auto continues = [bare](const std::string& name) {
    return without_dashes(name).starts_with(bare);
  };
  if (best.empty() && bare.size() >= kLeastBeginning) {
    const auto found = std::ranges::find_if(names, continues);
    best = found == names.end() ? "" : *found;
  }
  return best;
}

}  // namespace quire::cli
