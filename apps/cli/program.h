// The program `quire` behind its main function.
#pragma once

namespace quire::cli {

// Runs the command that the words name. Returns the exit code: 0 ok, 1 failed, 2 wrong usage, 130
// ended by Ctrl-C. Throws what a command throws.
[[nodiscard]] int run_program(int argc, const char* const* argv);

}  // namespace quire::cli
