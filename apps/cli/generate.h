// Loads a model and reads a request to its end, for `run` and `chat`.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "interrupts.h"
#include "progress.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"

namespace quire::cli {

// Opens `model`. On a terminal, a load of more than a second shows its progress on stderr; with
// `verbose` its time is reported there.
[[nodiscard]] Result<LLM> load(const std::string& model, LLMOptions options, bool verbose);

// Loads a model as load() does, with a registry of chunks.
[[nodiscard]] Result<ChunkedLLM> load_chunked(const std::string& model, LLMOptions options,
                                              ChunkCacheOptions chunks, bool verbose);

// Checks that `path` may be the store of a command. kInvalidArgument when it names nothing; kIo
// when there is no folder and the command does not `create` one.
[[nodiscard]] Status check_store(const std::string& path, bool create);

struct Generation {
  GenerationOutput output;
  bool interrupted = false;  // by Ctrl-C; output has what came until then
};

// Hands each piece of text to `sink` as it comes. The first Ctrl-C aborts the request. An error of
// `sink` ends it too and is returned. `progress` must be made before the stream. It shows a long
// wait for the first piece.
[[nodiscard]] Result<Generation> follow(LLM& llm, Stream stream, Interrupts& interrupts,
                                        const std::function<Status(std::string_view)>& sink,
                                        ComputeProgress& progress);

// Returns whether stdin is a pipe, a socket or a file, so that somebody may have put text there.
[[nodiscard]] bool text_is_piped();
// Notes on stderr that text which waits on stdin is not read beside `what`.
void note_unread_text(const std::string& what);
// Says on stderr that the program waits for text, where none comes for a while.
void wait_for_piped_text();

// Returns all of the file `path`, or of stdin for "-". Bytes that are not UTF-8 become U+FFFD, with
// a note.
[[nodiscard]] Result<std::string> read_text(const std::string& path);
// Reads a prompt as read_text() reads: kInvalidArgument for bytes that are not UTF-8.
[[nodiscard]] Result<std::string> read_strict_text(const std::string& path);

}  // namespace quire::cli
