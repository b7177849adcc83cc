// Time to the first token of a model whose packed weights are cached in a store: of the start that
// packs them, and of later ones that map them, beside a plain read of the file that these map (one
// thread, through a buffer that stays in the processor's cache), with the file in the page cache
// and without. Then decoding with packed and with mapped weights in turn.
//
//   weights_bench MODEL [ROUNDS [FOLDER [q8g32|q4g32]]]
//
// Bar: a later start takes 1.2 of the read. The model's own files stay in the page cache.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "must.h"
#include "quire/quire.h"

namespace quire {
namespace {

constexpr double kBar = 1.2;
constexpr int kDecodedTokens = 64;

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

void decode(LLM& llm, std::int32_t tokens) {
  const SamplingParams params{.temperature = 0, .max_tokens = tokens, .ignore_eos = true};
  must(llm.generate(std::vector<TokenId>{1}, params));
}

// Opens the model and has it say one token.
double first_token_seconds(const std::string& model, const LLMOptions& options,
                           std::unique_ptr<LLM>& llm) {
  llm.reset();
  return seconds([&] {
    llm = std::make_unique<LLM>(must(LLM::open(model, options)));
    decode(*llm, 1);
  });
}

double token_seconds(LLM& llm) {
  return seconds([&] { decode(llm, kDecodedTokens); }) / kDecodedTokens;
}

double read_seconds(const std::filesystem::path& path) {
  std::vector<char> buffer(std::size_t{1} << 20);
  return seconds([&] {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    while (::read(file, buffer.data(), buffer.size()) > 0) {
    }
    ::close(file);
  });
}

// Out of the page cache, unless somebody has it mapped or it lies in memory alone.
void drop(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  ::close(file);
}

std::filesystem::path weights_file(const std::string& store) {
  return std::filesystem::directory_iterator(store + "/weights")->path();
}

// Later starts and reads, in turn.
struct Pair {
  std::vector<double> starts, reads;

  [[nodiscard]] bool show(const char* where) const {
    const double ratio = median(starts) / median(reads);
    std::printf("file %-14s later start %8.1f ms, read %8.1f ms, ratio %.2f (bar %.1f)\n", where,
                median(starts) * 1e3, median(reads) * 1e3, ratio, kBar);
    return ratio <= kBar;
  }
};

int run(const std::string& model, int rounds, const std::string& folder,
        const LLMOptions& options) {
  std::unique_ptr<LLM> packed, mapped;
  LLMOptions cached = options;
  cached.store = folder + "/store";
  cached.cache_weights = true;
  const double first = first_token_seconds(model, cached, mapped);
  for (const std::string& remark : must(mapped->remarks())) {
    std::fprintf(stderr, "remark: %s\n", remark.c_str());
  }
  const double plain = first_token_seconds(model, options, packed);
  const std::filesystem::path file = weights_file(cached.store);
  std::printf("packed weights %.1f MB; first start %.1f ms, without a cache %.1f ms\n",
              static_cast<double>(std::filesystem::file_size(file)) * 1e-6, first * 1e3,
              plain * 1e3);
  Pair in_cache, on_disk;
  std::vector<double> packed_tokens, mapped_tokens;
  for (int round = 0; round < rounds; ++round) {
    in_cache.starts.push_back(first_token_seconds(model, cached, mapped));
    in_cache.reads.push_back(read_seconds(file));
    packed_tokens.push_back(token_seconds(*packed));
    mapped_tokens.push_back(token_seconds(*mapped));
    mapped.reset();
    drop(file);
    on_disk.reads.push_back(read_seconds(file));
    drop(file);
    on_disk.starts.push_back(first_token_seconds(model, cached, mapped));
  }
  const bool quick_in_cache = in_cache.show("in page cache"), quick = on_disk.show("on disk");
  std::printf("a token: packed %.2f ms, mapped %.2f ms, ratio %.3f\n", median(packed_tokens) * 1e3,
              median(mapped_tokens) * 1e3, median(mapped_tokens) / median(packed_tokens));
  return quick_in_cache && quick ? 0 : 1;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: weights_bench MODEL [ROUNDS [FOLDER [q8g32|q4g32]]]\n");
    return 2;
  }
  const int rounds = argc > 2 ? std::max(1, std::atoi(argv[2])) : 5;
  const std::filesystem::path parent =
      argc > 3 ? argv[3] : std::filesystem::temp_directory_path().string();
  std::string folder = (parent / "weights_bench_XXXXXX").string();
  // NOLINTNEXTLINE(misc-include-cleaner): POSIX has it in <stdlib.h>
  if (::mkdtemp(folder.data()) == nullptr) {
    std::perror(folder.c_str());
    return 1;
  }
  const int result = quire::run(argv[1], rounds, folder, {.quantize = argc > 4 ? argv[4] : ""});
  std::filesystem::remove_all(folder);
  return result;
}
