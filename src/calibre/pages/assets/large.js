// The image enlarged over the whole page, where every part of it can be scrolled to.
const LARGER = 2;  // than what fits, or as many pixels as it has

function enlarged() { return !$("large").hidden; }

// At: which place of the image comes to the middle, as shares of its width and height.
function enlarge(source, at) {
  const image = $("closer");
  image.onload = () => {
    const [wide, high] = [image.naturalWidth, image.naturalHeight];
    image.style.width = `${wide * Math.max(1, LARGER * Math.min(innerWidth / wide, innerHeight / high))}px`;
    image.classList.toggle("small", wide < 200);
    $("large").scrollLeft = at[0] * $("large").scrollWidth - innerWidth / 2;
    $("large").scrollTop = at[1] * $("large").scrollHeight - innerHeight / 2;
  };
  image.src = source;
  showLarge(true);
  $("large").focus();
}

function showLarge(on) {
  document.body.classList.toggle("zoomed", on);
  $("large").hidden = !on;
}

// Where an image that fits into its frame was pressed; its middle where a key did it.
function pressed(event, image) {
  const [wide, high] = [image.naturalWidth, image.naturalHeight];
  if (!event?.detail || !wide) return [0.5, 0.5];
  const box = image.getBoundingClientRect();
  const scale = Math.min(box.width / wide, box.height / high);
  const share = (point, middle, side) => Math.min(1, Math.max(0, 0.5 + (point - middle) / (scale * side)));
  return [share(event.clientX, box.left + box.width / 2, wide),
    share(event.clientY, box.top + box.height / 2, high)];
}
