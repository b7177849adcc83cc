// The program `quire`: main alone, since whatever includes CLI11 compiles long.
#include <fcntl.h>
#include <signal.h>  // SIGPIPE is of POSIX
#include <unistd.h>

#include <clocale>
#include <exception>

#include "output.h"
#include "program.h"
#include "quire/result.h"

namespace {

// Opens descriptors 0 to 2 where they are closed, or the first files opened would become them and
// get our output.
void occupy_standard_descriptors() {
  int descriptor = 0;
  do {
    descriptor = open("/dev/null", O_RDONLY);
  } while (descriptor >= 0 && descriptor <= STDERR_FILENO);
  close(descriptor);
}

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_descriptors();
  signal(SIGPIPE,
         SIG_DFL);  // a pipe whose reader has left ends us quietly, whatever our parent ignored
  std::setlocale(LC_CTYPE, "C.UTF-8");
  try {
    return quire::cli::run_program(argc, argv);
  } catch (const std::exception& error) {
    return quire::cli::fail({quire::ErrorCode::kInternal, error.what()});
  }
}
