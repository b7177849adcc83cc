#include "generate.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
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

#include "hub.h"
#include "interrupts.h"
#include "output.h"
#include "progress.h"
#include "quire/chunks.h"
#include "quire/interrupt.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/tools.h"
#include "utf8.h"

namespace quire::cli {
namespace {

// Returns the result of `open` for the options, and shows its progress.
template <class Open>
auto load_with(const std::string& model, LLMOptions options, bool verbose, Open open) {
  ProgressLine line;
  if (watched()) {
    options.progress = [&line](double share) {
      line.show("loading " + std::to_string(static_cast<int>(share * 100)) + " %");
    };
  }
  const auto found = find_model(model);
  auto llm = found.ok() ? open(*found, options) : found.error();
  line.clear();
  if (verbose && llm.ok()) {
    std::fprintf(stderr, "loaded %s in %.2f s\n", model.c_str(), line.seconds());
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

Result<std::string> read_bytes(const std::string& path) {
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

std::string shown_path(const std::string& path) {
  return path == "-" ? "stdin" : "\"" + path + "\"";
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
                          const std::function<Status(std::string_view)>& sink,
                          ComputeProgress& progress) {
  Generation generation;
  while (true) {
    const bool ready = stream.wait(kInterruptPollMs);
    QUIRE_TRY_STATUS(pass_on(interrupts, llm, stream, generation.interrupted));
    if (!ready) {
      progress.look();
      continue;
    }
    progress.end();
    QUIRE_TRY(const std::optional<Delta> delta, stream.next());
    if (!delta.has_value()) {
      break;
    }
    QUIRE_TRY_STATUS(sink(delta->text));
  }
  generation.output = stream.output();
  return generation;
}

bool text_is_piped() {
  struct stat input{};
  return fstat(STDIN_FILENO, &input) == 0 &&
         (S_ISFIFO(input.st_mode) || S_ISREG(input.st_mode) || S_ISSOCK(input.st_mode));
}

void note_unread_text(const std::string& what) {
  int waiting = 0;
  struct stat input{};
  const bool is_file = fstat(STDIN_FILENO, &input) == 0 && S_ISREG(input.st_mode);
  // NOLINTNEXTLINE(misc-include-cleaner): sys/ioctl.h has FIONREAD
  const bool is_waiting = ioctl(STDIN_FILENO, FIONREAD, &waiting) == 0 && waiting > 0;
  const bool has_text = is_file ? lseek(STDIN_FILENO, 0, SEEK_CUR) < input.st_size : is_waiting;
  if (text_is_piped() && has_text) {
    note("(the text on stdin is not read: " + what + " is given)");
  }
}

void wait_for_piped_text() {
  constexpr int kPatienceMs = 2000;
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  if (poll(&input, 1, kPatienceMs) == 0) {
    note("(waiting for text on stdin, which is a pipe; with < /dev/null none is read)");
  }
}

Result<std::string> read_text(const std::string& path) {
  QUIRE_TRY(std::string bytes, read_bytes(path));
  return repair_utf8(std::move(bytes), shown_path(path));
}

Result<std::string> read_strict_text(const std::string& path) {
  QUIRE_TRY(std::string bytes, read_bytes(path));
  QUIRE_TRY_STATUS(check_utf8(bytes, shown_path(path)));
  return bytes;
}

}  // namespace quire::cli
