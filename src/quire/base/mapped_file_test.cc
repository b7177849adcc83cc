#include "quire/base/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "quire/result.h"

namespace quire::base {
namespace {

// A folder of its own for each test, gone afterwards.
class FileTest : public testing::Test {
 protected:
  FileTest()
      : folder_(std::filesystem::path(testing::TempDir()) /
                (std::string("quire_file_test_") +
                 testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::create_directories(folder_);
  }
  ~FileTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }

  static std::string text_of(const MappedFile& file) {
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
  }

  std::filesystem::path folder_;
};

using MappedFileTest = FileTest;
using ReadFileTest = FileTest;
using OpenFileTest = FileTest;

TEST_F(MappedFileTest, ShowsAllBytes) {
  const std::string text = std::string(100'000, 'x') + '\0' + "end";
  const Result<MappedFile> file = MappedFile::open(write("a", text));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(text_of(*file), text);
  EXPECT_EQ(file->path(), folder_ / "a");
}

TEST_F(MappedFileTest, AnOpenFileMayBeClosedOnceItIsMapped) {
  const std::filesystem::path path = write("a", "kept");
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const Result<MappedFile> file = MappedFile::map(descriptor, path, MappedUse::kAgain);
  ::close(descriptor);
  std::filesystem::remove(path);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(text_of(*file), "kept");
}

TEST_F(MappedFileTest, SaysWhenTheFileWasLastWrittenTo) {
  const std::filesystem::path path = write("a", "x");
  const timespec times[] = {{.tv_sec = 5, .tv_nsec = 0}, {.tv_sec = 1'700'000'000, .tv_nsec = 7}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  const Result<MappedFile> file = MappedFile::open(path);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->modified_ns(), 1'700'000'000'000'000'007);
}

TEST_F(MappedFileTest, EmptyFileHasNoBytes) {
  const Result<MappedFile> file = MappedFile::open(write("a", ""));
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->bytes().empty());
}

TEST_F(MappedFileTest, MoveKeepsTheMapping) {
  Result<MappedFile> file = MappedFile::open(write("a", "bytes"));
  ASSERT_TRUE(file.ok());
  MappedFile moved = std::move(file).value();
  EXPECT_EQ(text_of(moved), "bytes");
  MappedFile assigned;
  assigned = std::move(moved);
  EXPECT_EQ(text_of(assigned), "bytes");
}

TEST_F(MappedFileTest, BytesOutliveTheNameOfTheFile) {
  const Result<MappedFile> file = MappedFile::open(write("a", "bytes"));
  ASSERT_TRUE(file.ok());
  std::filesystem::remove(folder_ / "a");
  EXPECT_EQ(text_of(*file), "bytes");
}

TEST_F(MappedFileTest, WhatIsNoFileIsRefusedWithPathAndReason) {
  const Result<MappedFile> absent = MappedFile::open(folder_ / "absent");
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.error().code, ErrorCode::kIo);
  EXPECT_EQ(absent.error().message,
            "cannot open " + (folder_ / "absent").string() + ": No such file or directory");
  EXPECT_EQ(MappedFile::open(folder_).error().code, ErrorCode::kIo);
}

TEST_F(MappedFileTest, APipeIsRefusedAndNotWaitedFor) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(MappedFile::open(folder_ / "pipe").error().code, ErrorCode::kIo);
}

TEST_F(ReadFileTest, ReturnsAllBytes) {
  const std::string text = std::string(200'000, 'x') + '\0' + "\r\nend";
  const Result<std::string> read = read_file(write("a", text));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, text);
  EXPECT_EQ(*read_file(write("empty", "")), "");
}

TEST_F(ReadFileTest, LargerThanAllowedIsRefused) {
  const std::filesystem::path path = write("a", std::string(5000, 'x'));
  EXPECT_TRUE(read_file(path, 5000).ok());
  const Result<std::string> read = read_file(path, 4999);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(read.error().message, path.string() + " is larger than 4.9 KiB");
}

TEST_F(ReadFileTest, AbsentFileAndFolderAreRefused) {
  EXPECT_EQ(read_file(folder_ / "absent").error().code, ErrorCode::kIo);
  EXPECT_EQ(read_file(folder_).error().message,
            "cannot read " + folder_.string() + ": is a directory");
}

// Opening a pipe that nobody writes to would wait for ever.
TEST_F(ReadFileTest, APipeIsRefusedAndNotWaitedFor) {
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const Result<std::string> read = read_file(pipe);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, ErrorCode::kIo);
  EXPECT_EQ(read.error().message, "cannot read " + pipe + ": not a regular file");
}

TEST_F(ReadFileTest, ADeviceIsRefusedAndNotReadToItsEnd) {
  EXPECT_EQ(read_file("/dev/zero").error().message, "cannot read /dev/zero: not a regular file");
  EXPECT_EQ(read_file("/dev/null").error().code, ErrorCode::kIo);
}

TEST_F(ReadFileTest, AFileThatTheSystemMakesUpIsReadToItsEnd) {
  const Result<std::string> read = read_file("/proc/self/status");  // its size is said to be 0
  ASSERT_TRUE(read.ok());
  EXPECT_NE(read->find("Pid:"), std::string::npos);
}

TEST_F(OpenFileTest, ReadsFromAPlaceUpToTheEnd) {
  const Result<OpenFile> file = OpenFile::open(write("a", "0123456789"));
  ASSERT_TRUE(file.ok());
  std::string out(6, '.');
  EXPECT_EQ(*file->read(7, std::as_writable_bytes(std::span(out))), 3U);
  EXPECT_EQ(out, "789...");
  EXPECT_EQ(*file->read(100, std::as_writable_bytes(std::span(out))), 0U);
}

TEST_F(OpenFileTest, SaysHowAFileBegins) {
  EXPECT_TRUE(file_begins_with(write("a", "GGUF..."), "GGUF"));
  EXPECT_FALSE(file_begins_with(write("b", "GGU"), "GGUF"));
  EXPECT_FALSE(file_begins_with(write("c", "ggufx"), "GGUF"));
  EXPECT_FALSE(file_begins_with(folder_ / "absent", "GGUF"));
  EXPECT_FALSE(file_begins_with(folder_, "GGUF"));
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_FALSE(file_begins_with(folder_ / "pipe", "GGUF"));
}

}  // namespace
}  // namespace quire::base
