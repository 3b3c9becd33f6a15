// The native tests' harness: TEST("name") { ... } registers a test, CHECK and friends report and count failures and go
// on, REQUIRE ends the test. No package of PyPI or of a bare distribution brings a C++ test framework, see
// docs/decisions.md. Each *_test.cpp is linked with check_main.cpp into one program, `native_tests [filter]`.
#pragma once

#include <cstdio>
#include <exception>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace check {

struct Test {
  std::string name;
  const char* file;
  std::function<void()> body;
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

inline int& failures() {
  static int count = 0;
  return count;
}

struct Register {
  Register(const char* name, const char* file, std::function<void()> body) {
    tests().push_back({name, file, std::move(body)});
  }
};

struct Abort {};

template <typename T>
std::string show(const T& value) {
  if constexpr (requires(std::ostringstream& s) { s << value; }) {
    std::ostringstream out;
    out.precision(9);
    out << value;
    return out.str();
  } else {
    return "(value)";
  }
}

inline void fail(const char* file, int line, const std::string& what) {
  failures()++;
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}

}  // namespace check

#define CHECK_JOIN2(a, b) a##b
#define CHECK_JOIN(a, b) CHECK_JOIN2(a, b)
#define TEST(name)                                                                                                     \
  static void CHECK_JOIN(test_body_, __LINE__)();                                                                      \
  static const check::Register CHECK_JOIN(test_register_, __LINE__){name, __FILE__, CHECK_JOIN(test_body_, __LINE__)}; \
  static void CHECK_JOIN(test_body_, __LINE__)()

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) check::fail(__FILE__, __LINE__, "CHECK failed: " #condition); \
  } while (0)

#define REQUIRE(condition)                                            \
  do {                                                                \
    if (!(condition)) {                                               \
      check::fail(__FILE__, __LINE__, "REQUIRE failed: " #condition); \
      throw check::Abort{};                                           \
    }                                                                 \
  } while (0)

#define CHECK_EQ(actual, expected)                                                                            \
  do {                                                                                                        \
    const auto check_a = (actual); /* a copy: the expression may be a part of a temporary */                  \
    const auto check_e = (expected);                                                                          \
    if (!(check_a == check_e))                                                                                \
      check::fail(__FILE__, __LINE__,                                                                         \
                  std::string(#actual " is ") + check::show(check_a) + ", expected " + check::show(check_e)); \
  } while (0)

// |actual - expected| <= tolerance; NaN never passes.
#define CHECK_NEAR(actual, expected, tolerance)                                                               \
  do {                                                                                                        \
    const double check_a = (actual), check_e = (expected), check_t = (tolerance);                             \
    const double check_d = check_a > check_e ? check_a - check_e : check_e - check_a;                         \
    if (!(check_d <= check_t))                                                                                \
      check::fail(__FILE__, __LINE__,                                                                         \
                  std::string(#actual " is ") + check::show(check_a) + ", expected " + check::show(check_e) + \
                      " within " + check::show(check_t));                                                     \
  } while (0)

// The expression must throw `type` with a message that contains `text`.
#define CHECK_THROWS_WITH(expression, type, text)                                                                      \
  do {                                                                                                                 \
    bool check_thrown = false;                                                                                         \
    try {                                                                                                              \
      (void)(expression);                                                                                              \
    } catch (const type& check_error) {                                                                                \
      check_thrown = true;                                                                                             \
      if (std::string(check_error.what()).find(text) == std::string::npos)                                             \
        check::fail(__FILE__, __LINE__, std::string("message \"") + check_error.what() + "\" lacks \"" + text + "\""); \
    }                                                                                                                  \
    if (!check_thrown) check::fail(__FILE__, __LINE__, #expression " did not throw " #type);                           \
  } while (0)
