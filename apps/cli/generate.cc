#include "generate.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "interrupts.h"
#include "output.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/tools.h"

namespace quire::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kQuietSeconds = 1.0;  // loads shorter than this show nothing
constexpr const char* kClearLine = "\r\x1b[K";

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// What `open` gives for the options, with its progress shown.
template <class Open>
auto load_with(const std::string& model, LLMOptions options, bool verbose, Open open) {
  const auto start = Clock::now();
  int shown_percent = -1;
  if (isatty(STDERR_FILENO) == 1) {
    options.progress = [&shown_percent, start](double share) {
      const int percent = static_cast<int>(share * 100);
      if (percent != shown_percent && seconds_since(start) > kQuietSeconds) {
        shown_percent = percent;
        std::fprintf(stderr, "%sloading %d %%", kClearLine, percent);
      }
    };
  }
  auto llm = open(model, options);
  if (shown_percent >= 0) {
    std::fputs(kClearLine, stderr);
  }
  if (verbose && llm.ok()) {
    std::fprintf(stderr, "loaded %s in %.2f s\n", model.c_str(), seconds_since(start));
  }
  return llm;
}

void note_remarks(const LLM& llm) {
  if (const auto remarks = llm.remarks(); remarks.ok()) {
    for (const std::string& remark : *remarks) {
      note("remark: " + remark);
    }
  }
}

// Aborts the request at the first look after Ctrl-C.
Status pass_on(Interrupts& interrupts, LLM& llm, const Stream& stream, bool& interrupted) {
  if (interrupted || !interrupts.pending()) {
    return {};
  }
  interrupted = true;
  QUIRE_TRY([[maybe_unused]] const bool known, llm.abort(stream.request_id()));
  return {};
}

}  // namespace

Result<LLM> load(const std::string& model, LLMOptions options, bool verbose) {
  auto llm = load_with(model, std::move(options), verbose, &LLM::open);
  if (llm.ok()) {
    note_remarks(*llm);
  }
  return llm;
}

Result<ChunkedLLM> load_chunked(const std::string& model, LLMOptions options,
                                ChunkCacheOptions chunks, bool verbose) {
  chunks.store = options.store;
  auto llm = load_with(model, std::move(options), verbose,
                       [&](const std::string& name, const LLMOptions& with) {
                         return ChunkedLLM::open(name, with, chunks);
                       });
  if (llm.ok()) {
    note_remarks(llm->llm());
  }
  return llm;
}

Status check_store(const std::string& path, bool create) {
  if (path.empty()) {
    return {ErrorCode::kInvalidArgument, "--store names no directory"};
  }
  std::error_code error;
  if (!create && !std::filesystem::is_directory(expand_home(path), error)) {
    return {ErrorCode::kIo, "no store at \"" + path + "\"; quire chunk add makes one"};
  }
  return {};
}

Result<Generation> follow(LLM& llm, Stream stream, Interrupts& interrupts,
                          const std::function<Status(std::string_view)>& sink) {
  Generation generation;
  while (true) {
    const bool ready = stream.wait(kInterruptPollMs);
    QUIRE_TRY_STATUS(pass_on(interrupts, llm, stream, generation.interrupted));
    if (!ready) {
      continue;
    }
    QUIRE_TRY(const std::optional<Delta> delta, stream.next());
    if (!delta.has_value()) {
      break;
    }
    QUIRE_TRY_STATUS(sink(delta->text));
  }
  generation.output = stream.output();
  return generation;
}

Result<std::string> read_text(const std::string& path) {
  const auto close = [](std::FILE* file) { return file == stdin ? 0 : std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> file(
      path == "-" ? stdin : std::fopen(expand_home(path).c_str(), "rb"), close);
  std::string text;
  char buffer[1 << 16];
  while (file != nullptr && std::feof(file.get()) == 0 && std::ferror(file.get()) == 0) {
    text.append(buffer, std::fread(buffer, 1, sizeof buffer, file.get()));
  }
  if (file == nullptr || std::ferror(file.get()) != 0) {
    return {ErrorCode::kIo, "cannot read \"" + path + "\": " + std::strerror(errno)};
  }
  return text;
}

}  // namespace quire::cli
