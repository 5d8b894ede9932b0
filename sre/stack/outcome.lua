-- Judges the answer of a completion while it passes, without holding it back.
--
-- Writes one word to the metadata llm_resp:end, from where the access log takes it:
--   ok            every choice ended with a reason in GOOD
--   error         an error object was seen (a stream reports errors with status 200)
--   queue_full    an error that says the engine's own queue is full
--   no_finish     no choice has a finish_reason
--   partial       some choices have none
--   finish_WORD   a choice ended with WORD, e.g. finish_abort
--   opaque        compressed: cannot be read
-- No word at the end of a stream: it was cut before it was complete.
--
-- Buffers are not events: a key may lie across two of them, hence the carry. A quote inside generated text is escaped,
-- so a bare "finish_reason" is always a key. Every call into Envoy costs as much as scanning an answer; so the status
-- is left to the reader of the log, and metadata is written once.

local GOOD = { stop = true, length = true, tool_calls = true, function_call = true, content_filter = true }
local CARRY = 64 -- bytes; longer than any key with its value that is looked for
local find, match, sub, tonumber = string.find, string.match, string.sub, tonumber

local function put(h, word)
  h:streamInfo():dynamicMetadata():set("llm_resp", "end", word)
end

-- Counts the finish reasons in s that end after position old.
local function scan_finish(st, s, old)
  local _, p = find(s, '"finish_reason"', 1, true)
  while p do
    local _, e, word = find(s, '^%s*:%s*"([%w_%-]*)"', p + 1)
    if not e then
      _, e = find(s, "^%s*:%s*n", p + 1)
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
    _, p = find(s, '"finish_reason"', p + 1, true)
  end
end

-- Remembers the highest choice index: how many finish reasons a stream owes.
local function scan_index(st, s)
  local _, p = find(s, '"choices"', 1, true)
  while p do
    local i = tonumber(match(s, '^%s*:%s*%[%s*{%s*"index"%s*:%s*(%d+)%D', p + 1))
    if i and i > st.top then
      st.top = i
    end
    _, p = find(s, '"choices"', p + 1, true)
  end
end

local function scan_error(st, s)
  local _, p = find(s, '"error"', 1, true)
  while p do
    if find(s, "^%s*:%s*[^%sn]", p + 1) then
      st.error = find(s, "on a different instance", p, true) and "queue_full" or "error"
      return
    end
    _, p = find(s, '"error"', p + 1, true)
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

local function judge_document(h)
  local st, s = { keys = 0, good = 0 }, ""
  for chunk in h:bodyChunks() do
    local old, n = #s, chunk:length()
    if n > 0 then
      s = s .. chunk:getBytes(0, n)
      scan_finish(st, s, old)
      if not st.error then
        scan_error(st, s)
      end
      s = sub(s, -CARRY)
    end
  end
  local word = verdict(st, st.keys)
  if word == "no_finish" and st.keys == 0 and (h:headers():get("content-encoding") or "identity") ~= "identity" then
    word = "opaque"
  end
  put(h, word)
end

local function judge_stream(h)
  local st, s, said = { keys = 0, good = 0, top = -1 }, "\n", nil
  for chunk in h:bodyChunks() do
    local old, n = #s, chunk:length()
    if n > 0 then
      s = s .. chunk:getBytes(0, n)
      scan_finish(st, s, old)
      scan_index(st, s)
      if not st.error then
        scan_error(st, s)
        if st.error then
          said = st.error
          put(h, said)
        end
      end
      -- A client may leave as soon as it has [DONE], so the word cannot wait for the end of the stream.
      if not said and find(s, "\ndata: [DONE]", 1, true) then
        said = verdict(st, st.top + 1)
        put(h, said)
      end
      s = sub(s, -CARRY)
    end
  end
  local word = verdict(st, st.top + 1)
  if word ~= said then
    if st.keys == 0 and not st.error and (h:headers():get("content-encoding") or "identity") ~= "identity" then
      word = "opaque"
    end
    put(h, word)
  end
end

function envoy_on_response(h)
  local content_type = h:headers():get("content-type")
  if not content_type then
    return
  end
  if find(content_type, "json", 1, true) then
    judge_document(h)
  elseif find(content_type, "event-stream", 1, true) then
    judge_stream(h)
  end
end
