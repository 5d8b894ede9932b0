-- Judges the answer of a completion while it passes, without holding it back.
--
-- Writes one word to the metadata llm_resp:end, from where the access log takes it:
--   ok            every choice of a stream ended with a reason in GOOD
--   error         an error object was seen (a stream reports errors with status 200)
--   queue_full    an error that says the engine's own queue is full
--   no_finish     no choice has a finish_reason
--   partial       some choices have none
--   finish_WORD   a choice ended with WORD, e.g. finish_abort
--   opaque        compressed: cannot be read
-- No word: a whole document in which every choice ended so (the most frequent answer, and writing the word would cost
-- as much as all the rest), or an answer that was cut before its end; the connection's response flags tell which.
--
-- Buffers are not events: a key may lie across two of them, hence the carry. A quote inside generated text is escaped,
-- so a bare "finish_reason" is always a key. Speed: this runs for every answer. A call into Envoy costs as much as
-- scanning an answer, so metadata is written once and the status is left to the reader of the log; a plain find is
-- fastest when its first byte is rare, so keys are looked for without their opening quote.

if jit then
  jit.off() -- each answer runs in a coroutine of its own; compiling what runs once costs a quarter more than it saves
end

local GOOD = { stop = true, length = true, tool_calls = true, function_call = true, content_filter = true }
local CARRY = 64 -- bytes; longer than any key with its value that is looked for
local QUOTE = 34
local find, match, sub, byte, tonumber = string.find, string.match, string.sub, string.byte, tonumber

local function put(h, word)
  h:streamInfo():dynamicMetadata():set("llm_resp", "end", word)
end

-- Counts in st the finish reasons of s that end after position old.
local function scan_finish(st, s, old)
  local p, q = find(s, 'finish_reason"', 1, true)
  while p do
    if byte(s, p - 1) == QUOTE then
      local _, e, word = find(s, '^%s*:%s*"([%w_%-]*)"', q + 1)
      if not e then
        _, e = find(s, "^%s*:%s*n", q + 1)
      end
      if e and e > old then
        st.keys = st.keys + 1
        if word then
          if GOOD[word] then
            st.good = st.good + 1
          else
            st.bad = st.bad or word
          end
        end
      end
    end
    p, q = find(s, 'finish_reason"', q + 1, true)
  end
end

-- Remembers the highest choice index: how many finish reasons a stream owes.
local function scan_index(st, s)
  local p, q = find(s, 'choices"', 1, true)
  while p do
    local i = tonumber(match(s, '^%s*:%s*%[%s*{%s*"index"%s*:%s*(%d+)%D', q + 1))
    if i and i > st.top and byte(s, p - 1) == QUOTE then
      st.top = i
    end
    p, q = find(s, 'choices"', q + 1, true)
  end
end

local function scan_error(st, s)
  local p, q = find(s, 'error"', 1, true)
  while p do
    if byte(s, p - 1) == QUOTE and find(s, "^%s*:%s*[^%sn]", q + 1) then
      st.error = find(s, "on a different instance", q, true) and "queue_full" or "error"
      return
    end
    p, q = find(s, 'error"', q + 1, true)
  end
end

local function verdict(st, owed)
  if st.error then
    return st.error
  elseif st.bad then
    return "finish_" .. st.bad
  elseif st.good == 0 then
    return "no_finish"
  elseif st.good < owed then
    return "partial"
  end
  return "ok"
end

local function compressed(h)
  return (h:headers():get("content-encoding") or "identity") ~= "identity"
end

-- A document with a finish reason is no error document, so errors are looked for only in one without.
local function scan_document(st, s, old)
  scan_finish(st, s, old)
  if st.keys == 0 and not st.error then
    scan_error(st, s)
  end
end

-- A client may leave as soon as it has [DONE], so the word cannot wait for the end of the stream.
local function scan_stream(h, st, s, old)
  scan_finish(st, s, old)
  scan_index(st, s)
  if not st.error then
    scan_error(st, s)
    if st.error then
      st.said = st.error
      put(h, st.said)
    end
  end
  if not st.said and find(s, "[DONE]", 1, true) and find(s, "\ndata: [DONE]", 1, true) then
    st.said = verdict(st, st.top + 1)
    put(h, st.said)
  end
end

function envoy_on_response(h)
  local st, s, document = { keys = 0, good = 0, top = -1 }, "", nil
  for chunk in h:bodyChunks() do
    local old, n = #s, chunk:length()
    if n > 0 then
      s = old == 0 and chunk:getBytes(0, n) or s .. chunk:getBytes(0, n)
      if document == nil then
        document = find(s, "^%s*[{%[]") ~= nil
        if not document then
          s = "\n" .. s
        end
      end
      if document then
        scan_document(st, s, old)
      else
        scan_stream(h, st, s, old)
      end
      s = sub(s, -CARRY)
    end
  end
  local word = verdict(st, document and st.keys or st.top + 1)
  if st.keys == 0 and not st.error and compressed(h) then
    word = "opaque"
  end
  if word ~= st.said and not (document and word == "ok") then
    put(h, word)
  end
end
