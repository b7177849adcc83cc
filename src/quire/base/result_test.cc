#include "quire/result.h"

#include <gtest/gtest.h>

#include <memory>
#include <sstream>
#include <string>

#include "quire/version.h"

namespace quire {
namespace {

Result<int> failed() { return {ErrorCode::kNotFound, "no chunk \"ada\""}; }

template <class T>
std::string written(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

TEST(Result, ErrorsStatusesAndCodesAreWrittenToStreams) {
  EXPECT_EQ(written(ErrorCode::kOutOfBlocks), "OutOfBlocks");
  EXPECT_EQ(written(failed().error()), "NotFound: no chunk \"ada\"");
  EXPECT_EQ(written(Status()), "ok");
  EXPECT_EQ(written(Status(ErrorCode::kIo, "disk full")), "Io: disk full");
}

TEST(Result, AValueThatIsThereIsTaken) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  EXPECT_EQ(**result, 7);
  EXPECT_EQ(*std::move(result).value(), 7);
}

TEST(ResultDeathTest, ValueOfAFailedResultSaysWhichErrorItWas) {
  constexpr const char* kSaid = "value\\(\\) of a failed Result: NotFound: no chunk \"ada\"";
  EXPECT_DEATH(static_cast<void>(failed().value()), kSaid);
  const Result<int> result = failed();
  EXPECT_DEATH(static_cast<void>(result.value()), kSaid);
  EXPECT_DEATH(static_cast<void>(*result), kSaid);
  const Result<std::string> text(ErrorCode::kIo, "disk full");
  EXPECT_DEATH(static_cast<void>(text->size()), "Io: disk full");
}

TEST(ResultDeathTest, ErrorOfAResultWithAValueSaysSo) {
  const Result<int> result(3);
  EXPECT_DEATH(static_cast<void>(result.error()), "error\\(\\) of a Result that has a value");
}

TEST(Version, OfTheHeadersIsANumberThatThePreprocessorCompares) {
#if QUIRE_VERSION_MAJOR == 0 && QUIRE_VERSION_MINOR < 1
  FAIL() << "older than the first version";
#endif
  EXPECT_GE(QUIRE_VERSION_PATCH, 0);
}

}  // namespace
}  // namespace quire
