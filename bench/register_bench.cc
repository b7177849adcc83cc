// Registering texts that are there already, by their length, beside what SHA-256 alone takes.
//
//   register_bench [MODEL [ROUNDS]]        default: models/cardfile/model, 30 rounds
//
// A text that is there costs no prefill and no time that grows with its length beyond hashing it.
// Bar: 1 GB/s of text. Contexts go as far as the model's context; queries, which have no KV, up to
// 4 MB, on a copy of the model whose config.json names a longer context. "new" is the first
// registration: encoding the text and, of a context, its prefill; "again" the median of the rounds,
// "least" the quickest, which other work has disturbed least: GB/s are of that.
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "must.h"
#include "quire/quire.h"

namespace {

using quire::ChunkedLLM;
using quire::ChunkType;
using Clock = std::chrono::steady_clock;

constexpr std::array<std::size_t, 7> kSizes = {1'000,   4'000,     16'000,   64'000,
                                               256'000, 1'000'000, 4'000'000};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + std::ssize(times) / 2, times.end());
  return times[times.size() / 2];
}

// Cards with numbers of their own, so that no two texts begin alike.
std::string text_of(std::size_t bytes, std::uint32_t seed) {
  std::string text;
  while (text.size() < bytes) {
    seed = seed * 1664525 + 1013904223;
    text += "Card " + std::to_string((seed >> 8) % 1000) + ". Ada trades in apples in Foxley. ";
  }
  text.resize(bytes);
  return text;
}

double hash_seconds(const std::string& text) {
  std::array<unsigned char, 32> digest{};
  unsigned int size = 0;
  const auto start = Clock::now();
  if (EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1) {
    std::abort();
  }
  return seconds_since(start);
}

// A folder with the model's files, and a context of 4 million tokens in its config.json.
class LongModel {
 public:
  explicit LongModel(const std::filesystem::path& model)
      : folder_(std::filesystem::temp_directory_path() /
                ("register_bench." + std::to_string(Clock::now().time_since_epoch().count()))) {
    std::filesystem::create_directory(folder_);
    for (const auto& file : std::filesystem::directory_iterator(model)) {
      std::filesystem::create_symlink(std::filesystem::absolute(file.path()),
                                      folder_ / file.path().filename());
    }
    std::ifstream in(model / "config.json");
    const std::string config{std::istreambuf_iterator<char>(in), {}};
    std::filesystem::remove(folder_ / "config.json");
    std::ofstream(folder_ / "config.json")
        << std::regex_replace(config, std::regex(R"("max_position_embeddings": *\d+)"),
                              R"("max_position_embeddings": 4194304)");
  }
  ~LongModel() { std::filesystem::remove_all(folder_); }
  LongModel(const LongModel&) = delete;
  LongModel& operator=(const LongModel&) = delete;

  [[nodiscard]] std::string folder() const { return folder_.string(); }

 private:
  std::filesystem::path folder_;
};

std::int64_t tokens_computed(ChunkedLLM& llm) {
  for (const auto& [name, value] : must(llm.llm().stats())) {
    if (name == "tokens_computed") {
      return static_cast<std::int64_t>(value);
    }
  }
  return -1;
}

// Texts of a kind, until one is longer than the model's context.
void measure(ChunkedLLM& llm, ChunkType type, int rounds) {
  for (const std::size_t bytes : kSizes) {
    const quire::ChunkContent chunk = {.content = text_of(bytes, static_cast<std::uint32_t>(bytes)),
                                       .type = type};
    auto start = Clock::now();
    const auto id = llm.register_chunk(chunk);
    const double first = seconds_since(start);
    if (!id.ok() && id.error().code == quire::ErrorCode::kOverflow) {
      return;
    }
    const std::size_t tokens = must(llm.get_chunk(must(id))).token_ids.size();
    const std::int64_t computed = tokens_computed(llm);
    std::vector<double> again;
    std::vector<double> hashing;
    for (int round = 0; round < rounds; ++round) {
      start = Clock::now();
      must(llm.register_chunk(chunk));
      again.push_back(seconds_since(start));
      hashing.push_back(hash_seconds(std::get<std::string>(chunk.content)));
    }
    const double seconds = median(again);
    const double least = *std::ranges::min_element(again);
    std::printf("%-10s %9zu %9zu %12.2f %12.1f %12.1f %10.2f %14.1f %9lld\n", chunk_type_name(type),
                bytes, tokens, first * 1e3, seconds * 1e6, least * 1e6,
                static_cast<double>(bytes) / least / 1e9, median(hashing) * 1e6,
                static_cast<long long>(tokens_computed(llm) - computed));
  }
}

}  // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): what a bench throws may end it.
int main(int argc, char** argv) {
  const std::string model = argc > 1 ? argv[1] : "models/cardfile/model";
  const int rounds = argc > 2 ? std::stoi(argv[2]) : 30;
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // lines as they come, in pipes too
  std::printf("%-10s %9s %9s %12s %12s %12s %10s %14s %9s\n", "kind", "bytes", "tokens", "new [ms]",
              "again [us]", "least [us]", "[GB/s]", "SHA-256 [us]", "computed");
  const LongModel longer(model);
  for (const ChunkType type : {ChunkType::kContext, ChunkType::kQuery}) {
    const bool has_kv = type == ChunkType::kContext;
    ChunkedLLM llm = must(ChunkedLLM::open(has_kv ? model : longer.folder()));
    measure(llm, type, rounds);
  }
  return 0;
}
