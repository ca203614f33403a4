// Goal: lines and texts of a load become the tokens of their bytes, from a file or from stdin, or
// an error that names the file and line at fault. Method: small files, a socket, and a terminal
// that hangs up, all made here.

#include "client/tools/ctl/corpus/token_lines.h"

#include <fcntl.h>
#include <pty.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/tools/ctl/load_files.h"
#include "tests/support/temp_folder.h"

namespace ckv::ctl {
namespace {

using test::TempPath;
using test::WriteTestFile;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

TEST(TokenLines, TakesArraysAndObjects) {
  const std::string path = WriteTestFile(
      "docs.jsonl", "[1, 2, 3]\n{\"text\": {\"a\": [1]}, \"token_ids\": [4]}\r\n[5,6]");
  auto documents = ReadTokenLines({path}, 256, 0);
  ASSERT_TRUE(documents.ok()) << documents.status();
  EXPECT_THAT(documents->tokens, ElementsAre(1, 2, 3, 4, 5, 6));
  ASSERT_EQ(documents->documents.size(), 3u);
  EXPECT_THAT(documents->of(1), ElementsAre(4));
  EXPECT_EQ(documents->documents[2].origin, path + ":3");
  documents = ReadTokenLines({path, path}, 256, 8);
  ASSERT_TRUE(documents.ok());
  EXPECT_THAT(documents->tokens, ElementsAre(1, 2, 3, 4, 5, 6, 1, 2));
  EXPECT_EQ(documents->documents[3].origin, path + ":1");
}

TEST(TokenLines, ABadLineIsNamed) {
  for (const auto& [line, error] : std::vector<std::pair<std::string, std::string>>{
           {"[1, 2", "not JSON"},
           {"[]", "without a token"},
           {"7", "must be an array"},
           {"{\"ids\": [1]}", "no token_ids"},
           {"{\"token_ids\": 1}", "must be an array"},
           {"{\"token_ids\": [1], \"token_ids\": [2]}", "twice"},
           {"[1, 256]", "token_ids[1] is 256, and the model's ids are 0 to 255"},
           {"[-1]", "token_ids[0]"},
           {"[1.5]", "token_ids[0]"},
           {"[\"1\"]", "token_ids[0]"},
           {"[18446744073709551616]", "token_ids[0]"},
           {"[[1]]", "token_ids[0]"},
           {std::string(40, '['), "nested"}}) {
    const std::string path = WriteTestFile("bad.jsonl", "[1]\n" + line + "\n[2]\n");
    const absl::Status status = ReadTokenLines({path}, 256, 0).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(Text(status), AllOf(HasSubstr(path + ":2: "), HasSubstr(error)));
  }
  EXPECT_FALSE(ReadTokenLines({WriteTestFile("none.jsonl", "")}, 256, 0).ok());
  EXPECT_FALSE(ReadTokenLines({WriteTestFile("blank.jsonl", "\n \n")}, 256, 0).ok());
  const auto spaced =
      ReadTokenLines({WriteTestFile("spaced.jsonl", "\n[1]\n\n \t\r\n[2]\n")}, 256, 0);
  ASSERT_TRUE(spaced.ok()) << spaced.status();
  EXPECT_THAT(spaced->tokens, ElementsAre(1, 2));
  EXPECT_THAT(spaced->documents[1].origin, HasSubstr(":5"));
  EXPECT_EQ(ReadTokenLines({TempPath("absent")}, 256, 0).status().code(),
            absl::StatusCode::kNotFound);
}

// Replaces stdin by `fd` while it exists, and closes `fd`.
class AsStdin {
 public:
  explicit AsStdin(int fd) : before_(dup(STDIN_FILENO)) {
    EXPECT_EQ(dup2(fd, STDIN_FILENO), STDIN_FILENO);
    EXPECT_EQ(close(fd), 0);
  }
  ~AsStdin() {
    EXPECT_EQ(dup2(before_, STDIN_FILENO), STDIN_FILENO);
    close(before_);
  }

 private:
  const int before_;
};

// The first line was read before.
TEST(TokenLines, ReadsStdinFromItsPosition) {
  const std::string path = WriteTestFile("read.jsonl", "[7]\n[1, 2]\n[3]\n");
  const int file = open(path.c_str(), O_RDONLY);
  ASSERT_EQ(lseek(file, 4, SEEK_SET), 4);
  const AsStdin as_stdin(file);
  const auto documents = ReadTokenLines({"-"}, 256, 0);
  ASSERT_TRUE(documents.ok()) << documents.status();
  EXPECT_THAT(documents->tokens, ElementsAre(1, 2, 3));
  EXPECT_EQ(documents->documents[1].origin, "stdin:2");
}

// A socket has no name that could be opened again.
TEST(TokenLines, StdinMayBeASocket) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  ASSERT_EQ(write(ends[0], "text", 4), 4);
  ASSERT_EQ(close(ends[0]), 0);
  const AsStdin as_stdin(ends[1]);
  const auto texts = ReadTexts({"-"}, 0);
  ASSERT_TRUE(texts.ok()) << texts.status();
  EXPECT_THAT(texts->tokens, ElementsAre('t', 'e', 'x', 't'));
  EXPECT_EQ(texts->documents[0].origin, "stdin");
}

// A text that cannot be read further is not at its end.
TEST(TokenLines, AFailedReadIsAnError) {
  const std::string path = "/proc/self/mem";  // nothing is mapped at 0
  EXPECT_THAT(Text(ReadTextTokens(path, 0).status()),
              AllOf(HasSubstr(path), HasSubstr("Input/output error")));
  EXPECT_THAT(Text(ReadTokenLines({path}, 256, 0).status()),
              AllOf(HasSubstr(path), HasSubstr("Input/output error")));
  // A terminal that hung up after it gave a line.
  int master = -1, terminal = -1;
  ASSERT_EQ(openpty(&master, &terminal, nullptr, nullptr, nullptr), 0);
  ASSERT_EQ(write(terminal, "[1]\n", 4), 4);
  ASSERT_EQ(close(terminal), 0);
  const AsStdin as_stdin(master);
  EXPECT_THAT(Text(ReadTokenLines({"-"}, 256, 0).status()),
              AllOf(HasSubstr("stdin:2: "), HasSubstr("Input/output error")));
}

TEST(TokenLines, ATextIsATokenAByte) {
  const std::string path = WriteTestFile("text", "0123456789\xff");
  EXPECT_EQ(ReadTextTokens(path, 0)->size(), 11u);
  EXPECT_EQ(ReadTextTokens(path, 0)->back(), 255);
  EXPECT_EQ(ReadTextTokens(TempPath("absent"), 0).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(ReadTextTokens(testing::TempDir(), 0).ok());
  EXPECT_FALSE(ReadTextTokens(WriteTestFile("empty", ""), 0).ok());
  const auto texts = ReadTexts({path, path}, 13);
  ASSERT_TRUE(texts.ok());
  EXPECT_EQ(texts->documents.size(), 2u);
  EXPECT_EQ(texts->of(1).size(), 2u);
}

}  // namespace
}  // namespace ckv::ctl
