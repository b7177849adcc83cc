// Measures the cost of owning the context: forks, marks, and a sequence in a file.
//
//   state_bench [MODEL [TOKENS [FOLDER [forks|files|first-token|compression|store|restart]]]]
//
// Bars: a fork or a drop of 4k tokens <= 10 us; saving >= 0.8 of the raw write rate and loading
// cold >= 0.8 of the raw read rate, measured in turn with them; loading from the page cache, and
// the time to the first token behind it, against the KV still in place; and a run from chunks that
// are in no store, with one and without: <= 1.01; and the first token of a restart, which reads its
// chunks while it computes, against the same with their KV in place. Without the last argument all.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "must.h"
#include "quire/quire.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;
using Ids = std::vector<TokenId>;

constexpr int kRounds = 7;
constexpr int kFirstTokenRounds = 15;
constexpr int kQuickRounds = 1001;
constexpr std::size_t kStoreRounds = 15;
constexpr int kSuffix = 32;
constexpr std::size_t kPiece = std::size_t{4} << 20;  // of raw reads and writes

double seconds_of(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Returns the median of the rounds' ratios: both sides of each were measured in the same moment.
double median_ratio(std::vector<double> ours, const std::vector<double>& theirs) {
  std::ranges::transform(ours, theirs, ours.begin(), std::divides());
  return median(std::move(ours));
}

void check(const Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "error: %s\n", status.error().message.c_str());
    std::exit(1);
  }
}

void check_system(bool done, const char* what) {
  if (!done) {
    std::perror(what);
    std::exit(1);
  }
}

// Below 32,000, where the smallest vocabulary of a preset ends.
Ids some_ids(std::size_t count, TokenId first) {
  Ids ids;
  for (std::size_t i = 0; i < count; ++i) {
    ids.push_back(first + static_cast<TokenId>((i * 7919) % 10000));
  }
  return ids;
}

// Writes and syncs the bytes of the file as plainly as can be.
void write_raw(const std::string& path, const std::vector<std::byte>& bytes) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  check_system(file >= 0, "open");
  for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
    const std::size_t count = std::min(kPiece, bytes.size() - at);
    check_system(::write(file, bytes.data() + at, count) == static_cast<ssize_t>(count), "write");
  }
  check_system(file >= 0 && ::fsync(file) == 0, "fsync");
  ::close(file);
}

void read_raw(const std::string& path, std::vector<std::byte>& bytes) {
  const int file = ::open(path.c_str(), O_RDONLY);
  check_system(file >= 0, "open");
  std::size_t at = 0;
  while (true) {
    const ssize_t count = ::read(file, bytes.data() + at, std::min(kPiece, bytes.size() - at));
    if (count <= 0) {
      break;
    }
    at += static_cast<std::size_t>(count);
  }
  check_system(at == bytes.size(), "read");
  ::close(file);
}

void forget_pages(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY);
  check_system(file >= 0 && ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0, "fadvise");
  ::close(file);
}

// One token behind `sequence` and a suffix that nobody has seen.
void first_token(Sequence& sequence, const Ids& suffix) {
  check(sequence.append(suffix));
  const auto output = must(sequence.generate({.temperature = 0, .max_tokens = 1}));
  check_system(output.token_ids.size() == 1, "no token");
}

void print_quick(const char* what, const std::vector<double>& seconds) {
  std::printf("%-34s %10.2f us\n", what, median(seconds) * 1e6);
}

void bench_forks(Sequence& sequence) {
  std::vector<double> forks, drops, marks;
  for (int round = 0; round < kQuickRounds; ++round) {
    std::vector<Sequence> fork;
    forks.push_back(seconds_of([&] { fork.push_back(must(sequence.fork())); }));
    drops.push_back(seconds_of([&] { fork.clear(); }));
    marks.push_back(seconds_of([&] {
      const Mark mark = must(sequence.checkpoint());
      check(sequence.rollback(mark));
      check(sequence.commit(mark));
    }));
  }
  print_quick("fork", forks);
  print_quick("drop", drops);
  print_quick("checkpoint, rollback, commit", marks);
}

void bench_files(LLM& llm, Sequence& sequence, const std::filesystem::path& folder) {
  const std::string saved = folder / "state_bench.qkv", raw = folder / "state_bench.raw";
  check(sequence.save(saved));
  std::vector<std::byte> bytes(std::filesystem::file_size(saved), std::byte{7});
  std::vector<double> save, write, load_cold, read_cold, load_warm, read_warm, usable;
  for (int round = 0; round < kRounds; ++round) {
    save.push_back(seconds_of([&] { check(sequence.save(saved)); }));
    write.push_back(seconds_of([&] { write_raw(raw, bytes); }));
    const auto load = [&] {
      [[maybe_unused]] const Sequence loaded = must(llm.load_sequence(saved));
    };
    forget_pages(saved);
    load_cold.push_back(seconds_of(load));
    forget_pages(raw);
    read_cold.push_back(seconds_of([&] { read_raw(raw, bytes); }));
    load_warm.push_back(seconds_of(load));
    read_warm.push_back(seconds_of([&] { read_raw(raw, bytes); }));
    {
      std::vector<Sequence> loaded;
      usable.push_back(
          seconds_of([&] { loaded.push_back(must(llm.load_sequence(saved, {.wait = false}))); }));
      first_token(loaded.front(), some_ids(1, 1));  // the reader has finished
    }
  }
  const double gib = static_cast<double>(bytes.size()) / (1 << 30);
  std::printf("%-34s %10.1f MiB\n", "file", gib * 1024);
  const auto rate = [&](const char* what, const std::vector<double>& ours,
                        const std::vector<double>& theirs) {
    std::printf("%-34s %10.2f ms %8.2f GiB/s  %.2f of raw\n", what, median(ours) * 1e3,
                gib / median(ours), median(theirs) / median(ours));
  };
  rate("save (synced)", save, write);
  rate("load, not in the page cache", load_cold, read_cold);
  rate("load, in the page cache", load_warm, read_warm);
  print_quick("load, until it can be used", usable);
  std::filesystem::remove(saved);
  std::filesystem::remove(raw);
}

// First token of a suffix: behind KV that is in place, and with the time of loading it counted.
void bench_first_token(LLM& llm, Sequence& sequence, const std::filesystem::path& folder) {
  const std::string saved = folder / "state_bench.qkv";
  check(sequence.save(saved));
  std::vector<double> there, restored, restored_at_once;
  for (int round = 0; round < kFirstTokenRounds; ++round) {
    Ids suffix = some_ids(kSuffix, 11000 + round);
    there.push_back(seconds_of([&] {
      Sequence fork = must(sequence.fork());
      first_token(fork, suffix);
    }));
    suffix.front() += kFirstTokenRounds;
    restored.push_back(seconds_of([&] {
      Sequence loaded = must(llm.load_sequence(saved));
      first_token(loaded, suffix);
    }));
    suffix.front() += kFirstTokenRounds;
    restored_at_once.push_back(seconds_of([&] {
      Sequence loaded = must(llm.load_sequence(saved, {.wait = false}));
      first_token(loaded, suffix);
    }));
  }
  std::printf("%-34s %10.2f ms\n", "first token, KV in place", median(there) * 1e3);
  const auto print = [&](const char* what, const std::vector<double>& seconds) {
    std::printf("%-34s %10.2f ms %8.3f times that\n", what, median(seconds) * 1e3,
                median_ratio(seconds, there));
  };
  print("first token, loaded before", restored);
  print("first token, loaded meanwhile", restored_at_once);
  std::filesystem::remove(saved);
}

// Seconds to register chunks that nobody has seen before, and to answer behind them.
double cold_run(ChunkedLLM& llm, TokenId unseen) {
  constexpr int kChunks = 4;
  constexpr std::size_t kChunkTokens = 256;
  const double seconds = seconds_of([&] {
    const auto add = [&](std::size_t count, ChunkType type) {
      return must(llm.register_chunk({.content = some_ids(count, ++unseen), .type = type}));
    };
    CompositionSpec spec{.system_chunk_id = add(kChunkTokens, ChunkType::kSystemPrompt)};
    for (int i = 1; i < kChunks; ++i) {
      spec.context_chunk_ids.push_back(add(kChunkTokens, ChunkType::kContext));
    }
    spec.query_chunk_id = add(kSuffix, ChunkType::kQuery);
    must(llm.generate_from_chunks(spec, {.temperature = 0, .max_tokens = 32, .ignore_eos = true}));
  });
  must(llm.clear_chunks());
  return seconds;
}

struct CheckpointTimes {
  std::vector<double> save, load;
  std::int64_t bytes = 0;
};

// Adds one round.
void save_and_load(LLM& llm, Sequence& sequence, const std::string& store, bool compress,
                   CheckpointTimes& times) {
  CheckpointManager manager = must(CheckpointManager::open(llm, store, {.compress = compress}));
  const NamedSequence named{"it", &sequence};
  times.save.push_back(seconds_of([&] { times.bytes = must(manager.save({&named, 1})).bytes; }));
  times.load.push_back(seconds_of([&] { check_system(must(manager.load()).size() == 1, "load"); }));
}

// Measures one checkpoint with and without compression of the KV.
void bench_compression(LLM& llm, Sequence& sequence, const std::filesystem::path& folder) {
  for (const bool compress : {false, true}) {
    const std::filesystem::path store = folder / "quire-state-bench-checkpoints";
    CheckpointTimes times;
    for (int round = 0; round < kRounds; ++round) {
      save_and_load(llm, sequence, store.string(), compress, times);
      std::filesystem::remove_all(store);
    }
    std::printf("%-34s %10.1f MiB, saved in %.1f ms, loaded in %.1f ms\n",
                compress ? "checkpoint, compressed" : "checkpoint",
                static_cast<double>(times.bytes) / (1 << 20), median(times.save) * 1e3,
                median(times.load) * 1e3);
  }
}

void bench_store(const std::string& model, const std::filesystem::path& folder) {
  const std::filesystem::path store = folder / "quire-state-bench-store";
  ChunkedLLM without = must(ChunkedLLM::open(model, {}));
  std::array<std::vector<double>, 3> seconds;  // without, through, behind
  {
    const auto open = [&](const char* name, bool write_through) {
      return must(ChunkedLLM::open(
          model, {}, {.store = (store / name).string(), .write_through = write_through}));
    };
    std::filesystem::create_directories(store);
    ChunkedLLM at_once = open("through", true);
    ChunkedLLM later = open("behind", false);
    const std::array<ChunkedLLM*, 3> ways = {&without, &at_once, &later};
    for (std::size_t round = 0; round < kStoreRounds; ++round) {
      for (std::size_t turn = 0; turn < ways.size(); ++turn) {  // each goes first as often
        const std::size_t way = (round + turn) % ways.size();
        seconds[way].push_back(cold_run(*ways[way], 1000 * static_cast<TokenId>(round + 1)));
      }
    }
  }
  const auto print = [&](const char* what, const std::vector<double>& with) {
    std::printf("%-34s %10.2f ms %8.3f times that without one\n", what, median(with) * 1e3,
                median_ratio(with, seconds[0]));
  };
  print("cold run, written through", seconds[1]);
  print("cold run, written behind", seconds[2]);
  std::filesystem::remove_all(store);
}

// Each round is a process's first answer behind chunks that another has saved.
void bench_restart(const std::string& model, std::size_t tokens,
                   const std::filesystem::path& folder) {
  constexpr std::size_t kChunkTokens = 256;
  const std::filesystem::path store = folder / "quire-state-bench-restart";
  const auto open = [&] {
    return must(ChunkedLLM::open(model, {.prefix_cache = false}, {.store = store.string()}));
  };
  const auto answer = [](ChunkedLLM& llm, const CompositionSpec& spec) {
    return seconds_of(
        [&] { must(llm.generate_from_chunks(spec, {.temperature = 0, .max_tokens = 1})); });
  };
  CompositionSpec spec{.without_system = true};
  {
    ChunkedLLM llm = open();
    for (std::size_t i = 0; i * kChunkTokens < tokens; ++i) {
      spec.context_chunk_ids.push_back(
          must(llm.register_chunk({.content = some_ids(kChunkTokens, static_cast<TokenId>(i + 1)),
                                   .type = ChunkType::kContext})));
    }
    spec.query_chunk_id =
        must(llm.register_chunk({.content = some_ids(kSuffix, 3), .type = ChunkType::kQuery}));
  }
  std::vector<double> first, in_place;
  for (int round = 0; round < kRounds; ++round) {
    ChunkedLLM llm = open();
    must(llm.llm().generate(some_ids(kSuffix, 9), {.temperature = 0, .max_tokens = 4}));
    first.push_back(answer(llm, spec));
    in_place.push_back(answer(llm, spec));
  }
  std::printf("%-34s %10.2f ms, in place %.2f ms: %.3f times that\n", "first token of a restart",
              median(first) * 1e3, median(in_place) * 1e3, median_ratio(first, in_place));
  std::filesystem::remove_all(store);
}

void run(const std::string& model, std::size_t tokens, const std::filesystem::path& folder,
         const std::string& part) {
  const auto wanted = [&](const char* name) { return part.empty() || part == name; };
  // Without a prefix cache, which would bring back what is saved.
  LLM llm =
      must(LLM::open(model, {.kv_budget_bytes = std::int64_t{2} << 30, .prefix_cache = false}));
  std::printf("%s, %zu tokens, medians\n", model.c_str(), tokens);
  {
    Sequence sequence = must(llm.sequence(some_ids(tokens, 5)));
    if (wanted("forks")) {
      bench_forks(sequence);
    }
    if (wanted("files")) {
      bench_files(llm, sequence, folder);
    }
    if (wanted("first-token")) {
      bench_first_token(llm, sequence, folder);
    }
    if (wanted("compression")) {
      bench_compression(llm, sequence, folder);
    }
  }
  if (wanted("store")) {
    bench_store(model, folder);
  }
  if (wanted("restart")) {
    bench_restart(model, tokens, folder);
  }
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  const std::string model = argc > 1 ? argv[1] : "preset:smollm2-135m";
  const std::size_t tokens = argc > 2 ? std::stoul(argv[2]) : 4096;
  const std::filesystem::path folder =
      argc > 3 ? std::filesystem::path(argv[3]) : std::filesystem::temp_directory_path();
  quire::run(model, tokens, folder, argc > 4 ? argv[4] : "");
  return 0;
}
