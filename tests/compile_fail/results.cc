// No failure is dropped by forgetting it, and no value is taken for an error.
#include <string>

#include "quire/result.h"

namespace quire {

Status close_file();
Result<int> count_files();

Result<int> call() {
  QUIRE_TRY_STATUS(close_file());
  QUIRE_TRY(const int count, count_files());
#if QUIRE_BAD == 1
  close_file();
#elif QUIRE_BAD == 2
  count_files();
#elif QUIRE_BAD == 3
  const int number = count_files();
#elif QUIRE_BAD == 4
  if (close_file()) {
    return 0;
  }
#elif QUIRE_BAD == 5
  const Status status = std::string("a message without a code");
#endif
  return count;
}

}  // namespace quire
