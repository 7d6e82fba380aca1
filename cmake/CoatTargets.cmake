# One CMake target per folder. A folder's target is named after its path: worker/core/quant -> coat_worker_core_quant.
#
#   coat_library(DEPS ...)                         the library of the current folder
#   coat_program(NAME coat-worker MAIN main.cc DEPS ...)  an executable whose main() is MAIN
#   coat_test(LABELS cpu DEPS ...)                 one GoogleTest program from the current test folder

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
# Debug information of the optimised build: line tables are what a profile and a backtrace need.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")

find_program(COAT_CCACHE ccache)
if(COAT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${COAT_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_C_COMPILER_LAUNCHER})
endif()

add_library(coat_warnings INTERFACE)
target_compile_options(coat_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wsign-conversion;-Wno-missing-field-initializers>
  # GCC 12 sees overlapping copies inside std::string at -O3 where there are none (GCC bug 105651).
  $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<CONFIG:Release>>:-Wno-restrict>
  # Errors with the compiler that CI has. Newer ones warn of more, much of it false and inside the distribution's headers (GCC 13:
  # copies in fmt 9, variants, <regex>); that must not stop anyone's tests.
  $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<BOOL:${COAT_WERROR}>,$<VERSION_LESS:${CMAKE_CXX_COMPILER_VERSION},13>>:-Werror>
  # Bit-reproducible arithmetic: no fused multiply-add unless the source asks for it.
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(COAT_SANITIZE)
  target_compile_options(coat_warnings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${COAT_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>)
  target_link_options(coat_warnings INTERFACE -fsanitize=${COAT_SANITIZE})
  if(COAT_SANITIZE MATCHES thread)
    # protobuf's headers give a message with a map another layout under this macro, and the distribution's library and the
    # generated code are built without it.
    target_compile_options(coat_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-U__SANITIZE_THREAD__>)
  endif()
endif()

function(_coat_folder_target out)
  file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  string(REPLACE "/" "_" path ${path})
  set(${out} coat_${path} PARENT_SCOPE)
endfunction()

# The library of this folder: every .cc here but those in EXCLUDE. A folder with headers only becomes an INTERFACE library.
function(coat_library)
  cmake_parse_arguments(A "" "" "DEPS;PRIVATE_DEPS;EXCLUDE;SOURCES" ${ARGN})
  _coat_folder_target(target)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  file(GLOB headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.h)
  foreach(name IN LISTS A_EXCLUDE)
    list(REMOVE_ITEM sources ${CMAKE_CURRENT_SOURCE_DIR}/${name})
  endforeach()
  list(APPEND sources ${A_SOURCES})
  if(sources)
    add_library(${target} STATIC ${sources})
    target_link_libraries(${target} PUBLIC ${A_DEPS} PRIVATE ${A_PRIVATE_DEPS} coat_warnings)
    target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR})
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE ${A_DEPS})
    target_include_directories(${target} INTERFACE ${CMAKE_SOURCE_DIR})
  endif()
  if(headers)
    if(sources)
      target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${CMAKE_SOURCE_DIR} FILES ${headers})
    else()
      target_sources(${target} INTERFACE FILE_SET HEADERS BASE_DIRS ${CMAKE_SOURCE_DIR} FILES ${headers})
    endif()
    # Every header compiles alone: `cmake --build --target all_verify_interface_header_sets`.
    set_target_properties(${target} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  endif()
endfunction()

function(coat_program)
  cmake_parse_arguments(A "" "NAME;MAIN" "DEPS" ${ARGN})
  add_executable(${A_NAME} ${A_MAIN})
  target_link_libraries(${A_NAME} PRIVATE ${A_DEPS} coat_warnings)
  target_include_directories(${A_NAME} PRIVATE ${CMAKE_SOURCE_DIR})
endfunction()

# One GoogleTest program of this folder's *_test.cc. Named after the path below tests/: unit/spec -> unit_spec_test.
function(coat_test)
  cmake_parse_arguments(A "" "TIMEOUT" "DEPS;LABELS;ENVIRONMENT" ${ARGN})
  file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR}/tests ${CMAKE_CURRENT_SOURCE_DIR})
  string(REPLACE "/" "_" name ${path})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  if(NOT sources)
    return()
  endif()
  set(target ${name}_test)
  add_executable(${target} ${sources})
  target_link_libraries(${target} PRIVATE ${A_DEPS} GTest::gmock GTest::gtest_main coat_warnings)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  if(NOT A_LABELS)
    set(A_LABELS cpu)
  endif()
  add_test(NAME ${name} COMMAND ${target} --gtest_output=xml:${CMAKE_BINARY_DIR}/test-results/${name}.xml)
  set_tests_properties(${name} PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "${A_LABELS}" ENVIRONMENT
    "COAT_SOURCE_DIR=${CMAKE_SOURCE_DIR};COAT_BINARY_DIR=${CMAKE_BINARY_DIR};OMP_WAIT_POLICY=passive;${A_ENVIRONMENT}")
endfunction()
